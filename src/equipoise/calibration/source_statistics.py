"""Statistics of the source domain: measured once before deployment, frozen, saved."""

import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.calibration.fisher import Fisher
from equipoise.calibration.norm_limits import SampleMoments
from equipoise.calibration.rehearsal import Rehearsal
from equipoise.errors import OptionError, SourceError, StateError
from equipoise.files import read_tensors, write_tensors
from equipoise.functional import at_least_single, entropy
from equipoise.network.compiled import uncompiled
from equipoise.network.inputs import InputsFunction, batches, check_functions
from equipoise.network.modules import checked_module, device_of, fingerprint
from equipoise.network.named_tensors import part
from equipoise.network.normalisation import frozen_statistics
from equipoise.network.outputs import OutputsFunction, checked_logits
from equipoise.network.parameters import Parameters, checked_parameters
from equipoise.network.probabilities import are_probabilities, warn_of_probabilities
from equipoise.version import __version__

_TENSORS = ("norm_limits", "fisher", "rehearsals")
_KIND, _VERSION = "equipoise source statistics", 1
_FISHER, _LIMITS, _REHEARSAL = "source.fisher.", "source.norm_limits", "source.rehearsal."


@dataclass(frozen=True)
class SourceStatistics:
    """The certainty of a model on the data it was trained for, with which DEC compares the stream.

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
        norm_limits: how far batches of source data are from the model's batch-norm statistics at most, by
            layer and size of batch (`norm_limits.SampleMoments`): a batch beyond them is a jump of inputs.
            Empty for a model without batch norm.
        fisher: how much each parameter matters, by name (`fisher.Fisher`); empty unless asked for.
        rehearsals: how accurate methods on this model are, seen from their answers, by their names; made by
            `equipoise.rehearse`.

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
    norm_limits: Tensor = field(default_factory=lambda: torch.zeros(0), repr=False, compare=False)
    fisher: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    rehearsals: Mapping[str, Rehearsal] = field(default_factory=dict, repr=False, compare=False)

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
        fisher: Parameters | bool = False,
        inputs: InputsFunction | None = None,
        outputs: OutputsFunction | None = None,
        progress: bool = True,
    ) -> "SourceStatistics":
        """Measure a model on source-domain batches in one pass that keeps nothing but the logit norms.

        The loader yields tensors, tuples (inputs, labels), or dicts of keyword inputs; labels play no part.
        `inputs` and `outputs` are as in `equipoise.Adapter`. The model is left as it was. Samples with
        non-finite logits are left out, with a warning. `fisher=True` also measures what the method "eata"
        needs, for the parameters that it adapts by default (or those named, as its option `parameters` does):
        a forward and a backward more for each batch; its authors use 2,000 samples in batches of 64.
        """
        if max_samples is not None and (not isinstance(max_samples, int) or max_samples < 1):
            raise OptionError(f"expected max_samples >= 1 or None, got {max_samples}")
        model = checked_module(model)
        check_functions(inputs=inputs, outputs=outputs)
        fisher = "norm" if fisher is True else fisher
        importance = (
            None if fisher is False else Fisher(model, checked_parameters("parameters", fisher), outputs)
        )
        moments = SampleMoments(model)
        norms: list[torch.Tensor] = []
        total, largest, seen, left_out, classes, probabilities = 0.0, 0.0, 0, 0, 0, True
        modes = [(module, module.training) for module in model.modules()]
        try:
            model.eval()
            with torch.no_grad(), frozen_statistics(model), uncompiled(model):
                title = "source statistics" if progress else None
                for batch in batches(loader, model, device_of(model), inputs, progress=title):
                    if max_samples is not None and seen + batch.rows > max_samples:
                        batch = batch.select(torch.arange(batch.rows) < max_samples - seen)
                    with nullcontext() if moments.full else moments.gathering():
                        output = model(*batch.args, **batch.kwargs)
                    logits = checked_logits(output, batch.rows, classes or None, outputs)
                    classes = logits.shape[1]
                    finite = logits.isfinite().all(1)
                    good = at_least_single(logits[finite])
                    if not moments.full:
                        moments.name(logits.argmax(1), finite)
                    if importance is not None and len(good):
                        importance.observe(batch.select(finite))
                    total += float(entropy(good).double().sum())
                    norms.append(torch.linalg.vector_norm(good, dim=1).cpu())
                    largest = max(largest, float(good.abs().amax())) if len(good) else largest
                    probabilities &= are_probabilities(good)
                    left_out += batch.rows - len(good)
                    seen += batch.rows
                    if seen == max_samples:
                        break
        finally:
            for module, training in modes:
                module.training = training
        kept = torch.cat(norms)
        _check_norms(kept, largest, left_out)
        if left_out:
            warnings.warn(
                f"{left_out} of {seen} source samples gave non-finite logits and were left out", stacklevel=2
            )
        if probabilities:
            warn_of_probabilities()
        return cls(
            h0=total / len(kept),
            kappa=float(kept.median()),
            num_classes=classes,
            num_samples=len(kept),
            model_fingerprint=fingerprint(model),
            library_fingerprint=f"equipoise {__version__}, torch {torch.__version__}",
            norm_limits=moments.limits(),
            fisher={} if importance is None else importance.result(),
        )

    @property
    def rehearsal(self) -> Rehearsal:
        """The rehearsal, where there is one; of several, that of the recommended method, "poise"."""
        name = "poise" if "poise" in self.rehearsals or not self.rehearsals else next(iter(self.rehearsals))
        return self.rehearsal_of(name)

    def rehearsal_of(self, method: str) -> Rehearsal:
        """The rehearsal of a method; SourceError, with the call that makes one, where there is none."""
        if method not in self.rehearsals:
            have = ", ".join(self.rehearsals) or "none"
            raise SourceError(
                f"these source statistics hold no rehearsal of {method!r} (of {have}); make one with "
                f"source = equipoise.rehearse(model, held_out_loader, method={method!r}, source=source), "
                "where the loader yields (inputs, labels) that the model was not trained on"
            )
        return self.rehearsals[method]

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
        write_tensors(path, _KIND, _VERSION, self.tensors(), {"source": self.to_json()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SourceStatistics":
        """Read what `save` wrote; StateError where the file is anything else."""
        tensors, text = read_tensors(path, _KIND, _VERSION)
        try:
            return cls.from_parts(text["source"], tensors)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"{path}: not source statistics: {error!r}") from error

    def to_json(self) -> str:
        """Everything but the tensors, as text."""
        parts = {name: value for name, value in vars(self).items() if name not in _TENSORS}
        return json.dumps({**parts, "rehearsals": {n: r.to_json() for n, r in self.rehearsals.items()}})

    def tensors(self) -> dict[str, Tensor]:
        """The tensors, under names of their own in a file."""
        limits = {_LIMITS: self.norm_limits} if self.norm_limits.numel() else {}
        rehearsed = {
            f"{_REHEARSAL}{method}.{name}": tensor
            for method, rehearsal in self.rehearsals.items()
            for name, tensor in rehearsal.tensors().items()
        }
        return {**limits, **rehearsed, **{_FISHER + name: tensor for name, tensor in self.fisher.items()}}

    @classmethod
    def from_parts(cls, text: str, tensors: Mapping[str, Tensor]) -> "SourceStatistics":
        """The inverse of `to_json` and `tensors`; entries of other names are left alone."""
        parts = dict(json.loads(text))
        rehearsals = {
            method: Rehearsal.from_parts(text, part(tensors, f"{_REHEARSAL}{method}."))
            for method, text in dict(parts.pop("rehearsals", {})).items()
        }
        limits = tensors.get(_LIMITS, torch.zeros(0))
        return cls(**parts, norm_limits=limits, fisher=part(tensors, _FISHER), rehearsals=rehearsals)

    def agrees_with(self, other: "SourceStatistics") -> bool:
        """Whether both describe the same model, up to the rounding of another batch size or device."""
        return (
            (self.model_fingerprint, self.num_classes) == (other.model_fingerprint, other.num_classes)
            and math.isclose(self.h0, other.h0, rel_tol=1e-3, abs_tol=1e-4)
            and math.isclose(self.kappa, other.kappa, rel_tol=1e-3)
        )


def _check_norms(norms: Tensor, largest: float, left_out: int) -> None:
    """Raise SourceError where at least half of the logits are zero or overflow, or none is finite."""
    samples, median = len(norms), float(norms.median()) if len(norms) else math.nan
    advice = "are its weights loaded, and the inputs scaled as in training?"
    if not samples:
        raise SourceError(f"{left_out} of {left_out} source samples gave non-finite logits: {advice}")
    if median == 0:
        raise SourceError(
            f"the model's logits are zero for {int((norms == 0).sum())} of {samples} source samples: its "
            "last layer is not trained, or has weights of zero; train it or load its weights first"
        )
    if median == math.inf:
        raise SourceError(
            f"the model's logits overflow for {int(norms.isinf().sum())} of {samples} source samples (the "
            f"largest is {largest:.1e}, the root of its sum of squares is infinite): {advice}"
        )


def check_source(source: Any) -> SourceStatistics:
    """Source statistics as they are; SourceError, with the calls that make some, for anything else."""
    if not isinstance(source, SourceStatistics):
        raise SourceError(
            f"expected source as SourceStatistics, got {type(source).__name__}; "
            "equipoise.SourceStatistics.measure(model, source_loader) makes them, "
            "equipoise.rehearse(model, held_out_loader) with a rehearsal, and "
            "equipoise.SourceStatistics.load(path) reads them from a file"
        )
    return source
