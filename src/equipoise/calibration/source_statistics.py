"""Statistics of the source domain: measured once before deployment, frozen, saved."""

import errno
import json
import math
import os
from collections import ChainMap
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from equipoise.calibration.novelty import NEEDED, SourceInputs
from equipoise.calibration.rehearsal import Rehearsal
from equipoise.calibration.source_moments import (
    FeatureMoments,
    Fisher,
    MeasuredAnswers,
    SampleMoments,
    even_quantiles,
)
from equipoise.errors import SourceError, StateError
from equipoise.files import read_tensors, write_tensors
from equipoise.network.batch import InputsFunction, batches, check_functions
from equipoise.network.forward import OutputsFunction, checked_logits, uncompiled
from equipoise.network.head import watch_head
from equipoise.network.modules import checked_module, device_of, fingerprint
from equipoise.network.named_tensors import part, prefixed
from equipoise.network.normalisation import evaluation_mode
from equipoise.network.parameters import Parameters, checked_parameters
from equipoise.options import integer
from equipoise.version import __version__

_KIND, _VERSION = "equipoise source statistics", 1
_VECTORS = {name: f"source.{name}" for name in ("norm_limits", "entropies", "confidences")}
_TABLES = {name: f"source.{name}." for name in ("fisher", "features", "inputs")}
_REHEARSAL = "source.rehearsal."


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
            layer and size of batch (`source_moments.SampleMoments`): a batch beyond them is a jump of inputs.
            Empty for a model without batch norm.
        entropies: quantiles of the entropy of source samples in nats, at 257 equal levels from 0 to 1.
        confidences: quantiles of their largest probability, at the same levels.
        fisher: how much each parameter matters, by name (`source_moments.Fisher`); empty unless asked for.
        features: "mean" (D), "class_means" and "class_variances" (C, D), and "class_counts" (C) of the linear
            head's inputs by predicted class (`source_moments.FeatureMoments`); empty unless asked for.
        inputs: numbers of source inputs, from which the novelty of others is measured
            (`novelty.SourceInputs`): up to 250 rows of a table as they are, a few statistics of as many
            images, and the shape of a sample; empty for other inputs. `dataclasses.replace(source,
            inputs={})` leaves them out of files.
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
    entropies: Tensor = field(default_factory=lambda: torch.zeros(0), repr=False, compare=False)
    confidences: Tensor = field(default_factory=lambda: torch.zeros(0), repr=False, compare=False)
    fisher: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    features: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    inputs: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
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
        if self.inputs and not all(name in self.inputs for name in NEEDED):
            raise SourceError(
                f"expected {', '.join(NEEDED)} in what is known of source inputs, got "
                f"{', '.join(sorted(self.inputs))}; measure again: SourceStatistics.measure(model, loader)"
            )
        if not all(bool(tensor.isfinite().all()) for tensor in self.inputs.values()):
            raise SourceError("expected finite numbers of source inputs, got some that are not")

    @classmethod
    def measure(
        cls,
        model: nn.Module,
        loader: Iterable[Any],
        max_samples: int | None = None,
        *,
        fisher: Parameters | bool = False,
        features: bool = False,
        inputs: InputsFunction | None = None,
        outputs: OutputsFunction | None = None,
        progress: bool = True,
    ) -> "SourceStatistics":
        """Measure a model on source-domain batches in one pass.

        It keeps three numbers of each sample, and what `inputs` has of some.

        The loader yields tensors, tuples (inputs, labels), or dicts of keyword inputs; labels play no part.
        `inputs` and `outputs` are as in `equipoise.Adapter`. The model is left as it was. Samples with
        non-finite logits are left out, with a warning. `fisher=True` also measures what the method "eata"
        needs, for the parameters that it adapts by default (or those named, as its option `parameters` does):
        a forward and a backward more for each batch; its authors use 2,000 samples in batches of 64.
        `features=True` also measures the inputs of the model's linear head, in the same forward.
        """
        if max_samples is not None:
            max_samples = integer("max_samples", max_samples, low=1)
        model = checked_module(model)
        check_functions(inputs=inputs, outputs=outputs)
        fisher = "norm" if fisher is True else fisher
        importance = (
            None if fisher is False else Fisher(model, checked_parameters("parameters", fisher), outputs)
        )
        moments, answers, of_features = SampleMoments(model), MeasuredAnswers(), FeatureMoments()
        of_inputs = SourceInputs()
        seen, classes = 0, 0
        with evaluation_mode(model), uncompiled(model):
            title = "source statistics" if progress else None
            for batch in batches(loader, model, device_of(model), inputs, progress=title):
                if max_samples is not None and seen + batch.rows > max_samples:
                    batch = batch.select(torch.arange(batch.rows) < max_samples - seen)
                with ExitStack() as hooks:
                    if not moments.full:
                        hooks.enter_context(moments.gathering())
                    watched = hooks.enter_context(watch_head(model, None, False)) if features else None
                    output = model(*batch.args, **batch.kwargs)
                logits = checked_logits(output, batch.rows, classes or None, outputs)
                classes, finite = logits.shape[1], logits.isfinite().all(1)
                answers.observe(logits)
                of_inputs.observe(batch.samples(), logits)
                if not moments.full:
                    moments.name(logits.argmax(1), finite)
                if watched is not None:
                    of_features.observe(watched, logits)
                if importance is not None and finite.any():
                    importance.observe(batch.select(finite))
                seen += batch.rows
                if seen == max_samples:
                    break
        answers.check()
        return cls(
            h0=float(answers.nats.double().mean()) / math.log(2),
            kappa=float(answers.norms.median()),
            num_classes=classes,
            num_samples=len(answers.norms),
            model_fingerprint=fingerprint(model),
            library_fingerprint=f"equipoise {__version__}, torch {torch.__version__}",
            norm_limits=moments.limits(),
            entropies=even_quantiles(answers.nats),
            confidences=even_quantiles(answers.confidences),
            fisher={} if importance is None else importance.result(),
            features=of_features.result() if features else {},
            inputs=of_inputs.result(),
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
            cure = (
                "rehearse again: equipoise.rehearse(model, held_out)"
                if self.rehearsals
                else "measure again with SourceStatistics.measure(model, source_loader)"
            )
            raise SourceError(
                "these source statistics were measured on another model (other weights or layers): expected "
                f"fingerprint {self.model_fingerprint[:12]}, got {model_fingerprint[:12]}; {cure}"
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
        tensors = {*_VECTORS, *_TABLES, "rehearsals"}
        parts = {name: value for name, value in vars(self).items() if name not in tensors}
        return json.dumps({**parts, "rehearsals": {n: r.to_json() for n, r in self.rehearsals.items()}})

    def tensors(self) -> dict[str, Tensor]:
        """The tensors, under names of their own in a file."""
        vectors = {key: getattr(self, name) for name, key in _VECTORS.items() if getattr(self, name).numel()}
        tables = (prefixed(key, getattr(self, name)) for name, key in _TABLES.items())
        rehearsed = (
            prefixed(f"{_REHEARSAL}{method}.", rehearsal.tensors())
            for method, rehearsal in self.rehearsals.items()
        )
        return dict(ChainMap(vectors, *tables, *rehearsed))

    @classmethod
    def from_parts(cls, text: str, tensors: Mapping[str, Tensor]) -> "SourceStatistics":
        """The inverse of `to_json` and `tensors`; entries of other names are left alone."""
        parts = dict(json.loads(text))
        rehearsals = {
            method: Rehearsal.from_parts(text, part(tensors, f"{_REHEARSAL}{method}."))
            for method, text in dict(parts.pop("rehearsals", {})).items()
        }
        parts |= {name: tensors.get(key, torch.zeros(0)) for name, key in _VECTORS.items()}
        parts |= {name: part(tensors, key) for name, key in _TABLES.items()}
        return cls(**parts, rehearsals=rehearsals)

    def agrees_with(self, other: "SourceStatistics") -> bool:
        """Whether both describe the same model, up to the rounding of another batch size or device."""
        return (
            (self.model_fingerprint, self.num_classes) == (other.model_fingerprint, other.num_classes)
            and math.isclose(self.h0, other.h0, rel_tol=1e-3, abs_tol=1e-4)
            and math.isclose(self.kappa, other.kappa, rel_tol=1e-3)
        )


GivenSource: TypeAlias = SourceStatistics | str | os.PathLike[str]
"""Source statistics, or the path of the file that `SourceStatistics.save` wrote."""


def checked_source(source: Any) -> SourceStatistics:
    """Source statistics as they are, or read from a path; SourceError, with calls that make some, else."""
    if isinstance(source, (str, os.PathLike)):
        try:
            return SourceStatistics.load(source)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                errno.ENOENT,
                "no file of source statistics; equipoise.rehearse(model, held_out).save(path) writes one",
                os.fspath(source),
            ) from error
    if not isinstance(source, SourceStatistics):
        raise SourceError(
            "expected source as SourceStatistics, or as the path of a file of them, got "
            f"{type(source).__name__}; equipoise.SourceStatistics.measure(model, source_loader) makes them, "
            "and equipoise.rehearse(model, held_out_loader) with a rehearsal"
        )
    return source
