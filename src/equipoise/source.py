"""What must be known of the source domain before deployment: measured once, frozen, saved."""

import hashlib
import math
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from equipoise.batch import batches, checked_logits
from equipoise.errors import ModelError, OptionError, SourceError, StateError
from equipoise.files import read_tensors, write_tensors
from equipoise.functional import at_least_single, entropy
from equipoise.layers import steady_statistics
from equipoise.version import __version__

_KIND, _VERSION = "equipoise source statistics", 1


@dataclass(frozen=True)
class SourceStatistics:
    """How certain a model is on the data it was trained for: what DEC compares the stream with.

    h0 = mean entropy of softmax(z) in bits; kappa = median of ‖z‖₂ (the lower middle for an even count), both
    over source-domain samples with the model in eval mode (Amin and Kim, TMLR 2025). Make them with `measure`
    from training images without augmentation.

    Attributes:
        h0: mean entropy on the source domain, in bits.
        kappa: median norm of the logits on the source domain.
        num_classes: classes of the model.
        num_samples: samples measured.
        model_fingerprint: a hash of the weights they belong to; statistics made by hand may leave it empty
            and are then taken on trust.
        library_fingerprint: the versions that measured them.

    >>> model = nn.Linear(3, 2)
    >>> source = SourceStatistics.measure(model, [torch.randn(8, 3), torch.randn(8, 3)], progress=False)
    >>> source.num_classes, source.num_samples
    (2, 16)
    """

    h0: float
    kappa: float
    num_classes: int
    num_samples: int = 0
    model_fingerprint: str = ""
    library_fingerprint: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers that no classifier can have."""
        if self.num_classes < 2:
            raise SourceError(f"expected num_classes >= 2, got {self.num_classes}")
        if not (0 <= self.h0 <= math.log2(self.num_classes) * (1 + 1e-6)):
            raise SourceError(
                f"expected h0 between 0 and log2(num_classes) = {math.log2(self.num_classes):.4f} bits, "
                f"got {self.h0}"
            )
        if not (0 < self.kappa < math.inf):
            raise SourceError(f"expected kappa > 0 (the median logit norm), got {self.kappa}")

    @classmethod
    def measure(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        max_samples: int | None = None,
        *,
        progress: bool = True,
    ) -> "SourceStatistics":
        """Measure a model on source-domain batches in one pass that keeps nothing but the logit norms.

        The loader yields tensors, tuples whose first element is the input, or dicts of keyword inputs. The
        model is left as it was. Samples with non-finite logits are left out, with a warning.
        """
        if max_samples is not None and (not isinstance(max_samples, int) or max_samples < 1):
            raise OptionError(f"expected max_samples >= 1 or None, got {max_samples}")
        check_module(model)
        norms: list[torch.Tensor] = []
        total, seen, left_out, classes, probabilities = 0.0, 0, 0, 0, True
        modes = [(module, module.training) for module in model.modules()]
        try:
            model.eval()
            with torch.no_grad(), steady_statistics(model):
                title = "source statistics" if progress else None
                for batch in batches(loader, device_of(model), progress=title):
                    if max_samples is not None and seen + batch.rows > max_samples:
                        batch = batch.select(torch.arange(batch.rows) < max_samples - seen)
                    logits = checked_logits(model(*batch.args, **batch.kwargs), batch.rows, classes or None)
                    classes = logits.shape[1]
                    good = at_least_single(logits[logits.isfinite().all(1)])
                    total += float(entropy(good).double().sum())
                    norms.append(torch.linalg.vector_norm(good, dim=1).cpu())
                    probabilities &= bool((good >= 0).all() and ((good.sum(1) - 1).abs() < 1e-3).all())
                    left_out += batch.rows - len(good)
                    seen += batch.rows
                    if seen == max_samples:
                        break
        finally:
            for module, training in modes:
                module.training = training
        kept = torch.cat(norms)
        if left_out:
            message = f"{left_out} of {seen} source samples gave non-finite logits and were left out"
            if not len(kept):
                raise SourceError(message)
            warnings.warn(message, stacklevel=2)
        if probabilities:
            warnings.warn(
                "every output of the model is a row of probabilities: does it end in a softmax? "
                "Temperatures need the logits before it",
                stacklevel=2,
            )
        return cls(
            h0=total / len(kept),
            kappa=float(kept.median()),
            num_classes=classes,
            num_samples=len(kept),
            model_fingerprint=fingerprint(model),
            library_fingerprint=f"equipoise {__version__}, torch {torch.__version__}",
        )

    def check_fits(self, model_fingerprint: str) -> None:
        """Raise SourceError if these statistics were measured on a model with another fingerprint."""
        if self.model_fingerprint and self.model_fingerprint != model_fingerprint:
            raise SourceError(
                "these source statistics were measured on another model (other weights or layers): expected "
                f"fingerprint {self.model_fingerprint[:12]}, got {model_fingerprint[:12]}; "
                "measure again with SourceStatistics.measure(model, source_loader)"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a small safetensors file, atomically."""
        numbers = {
            "h0": torch.tensor(self.h0, dtype=torch.float64),
            "kappa": torch.tensor(self.kappa, dtype=torch.float64),
            "num_classes": torch.tensor(self.num_classes),
            "num_samples": torch.tensor(self.num_samples),
        }
        text = {"model_fingerprint": self.model_fingerprint, "library_fingerprint": self.library_fingerprint}
        write_tensors(path, _KIND, _VERSION, numbers, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SourceStatistics":
        """Read what `save` wrote; StateError where the file is anything else."""
        numbers, text = read_tensors(path, _KIND, _VERSION)
        try:
            return cls(
                h0=float(numbers["h0"]),
                kappa=float(numbers["kappa"]),
                num_classes=int(numbers["num_classes"]),
                num_samples=int(numbers["num_samples"]),
                model_fingerprint=text["model_fingerprint"],
                library_fingerprint=text["library_fingerprint"],
            )
        except (KeyError, ValueError, RuntimeError) as error:
            raise StateError(f"{path}: not source statistics: {error!r}") from error

    def agrees_with(self, other: "SourceStatistics") -> bool:
        """Whether both describe the same model, up to the rounding of another batch size or device."""
        return (
            (self.model_fingerprint, self.num_classes) == (other.model_fingerprint, other.num_classes)
            and math.isclose(self.h0, other.h0, rel_tol=1e-3, abs_tol=1e-4)
            and math.isclose(self.kappa, other.kappa, rel_tol=1e-3)
        )


def check_module(model: Any) -> None:
    """Refuse what is no module."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter or buffer; the CPU if it has none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def fingerprint(model: nn.Module) -> str:
    """A hash of the names, shapes and values of a model's floating-point weights and buffers.

    Values are hashed as float32, so it does not change with the device, the memory format or a cast to
    double; a cast to half precision changes the weights and so the fingerprint.
    """
    check_module(model)
    digest = hashlib.blake2b(digest_size=20)
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            # torch.compile wraps the module and prefixes every name.
            plain = name.replace("_orig_mod.", "")
            digest.update(f"{plain} {tuple(tensor.shape)};".encode())
            digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()
