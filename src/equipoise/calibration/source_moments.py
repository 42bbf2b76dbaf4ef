"""Measurements of a model on source data: its answers, and the numbers that methods compare a stream with."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from equipoise.errors import ModelError, SourceError, callers_level
from equipoise.functional import at_least_single, nats
from equipoise.network.batch import Batch
from equipoise.network.forward import (
    Layout,
    OutputsFunction,
    check_no_probabilities,
    checked_logits,
    needs_contiguous,
)
from equipoise.network.head import HeadFinder
from equipoise.network.modules import device_of, frozen_copy
from equipoise.network.normalisation import batch_norm_layers, batch_statistics, input_of
from equipoise.network.parameters import Parameters, gradients_of, select_parameters
from equipoise.network.running_statistics import SIZES, divergence

_LEVELS = 257
"""The number of equal levels from 0 to 1 at which quantiles are kept."""


def even_quantiles(values: Tensor) -> Tensor:
    """Quantiles of values at 257 equal levels from 0 to 1, interpolated between two values."""
    ordered = values.double().sort().values
    places = torch.linspace(0, len(ordered) - 1, _LEVELS, dtype=torch.float64, device=values.device)
    below = places.floor().long()
    above = (below + 1).clamp(max=len(ordered) - 1)
    return torch.lerp(ordered[below], ordered[above], places - below).float()


class MeasuredAnswers:
    """Three numbers of each source sample, from its logits z: ‖z‖₂, entropy in nats, and confidence.

    Confidence is the largest of softmax(z). Samples with non-finite logits are counted and left out. A first
    batch of probabilities, among those with finite rows, is refused.
    """

    def __init__(self) -> None:
        self._norms: list[Tensor] = []
        self._nats: list[Tensor] = []
        self._confidences: list[Tensor] = []
        self._largest, self._left_out = 0.0, 0

    def observe(self, logits: Tensor) -> None:
        """Take in the logits of a batch."""
        if not any(map(len, self._norms)):
            check_no_probabilities(logits)
        good = at_least_single(logits[logits.isfinite().all(1)])
        self._norms.append(torch.linalg.vector_norm(good, dim=1).cpu())
        self._nats.append(nats(good).cpu())
        self._confidences.append(good.softmax(1).amax(1).cpu())
        self._largest = max(self._largest, float(good.abs().amax())) if len(good) else self._largest
        self._left_out += len(logits) - len(good)

    def check(self) -> None:
        """Raise SourceError where they are no logits of a trained model; warn of samples left out."""
        norms = self.norms
        _check_norms(norms, self._largest, self._left_out)
        if self._left_out:
            warnings.warn(
                f"{self._left_out} of {self._left_out + len(norms)} source samples gave non-finite logits "
                "and were left out",
                stacklevel=callers_level(),
            )

    @property
    def norms(self) -> Tensor:
        """The norm of each sample's logits."""
        return torch.cat(self._norms)

    @property
    def nats(self) -> Tensor:
        """The entropy of each sample."""
        return torch.cat(self._nats)

    @property
    def confidences(self) -> Tensor:
        """The largest probability of each sample."""
        return torch.cat(self._confidences)


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


class FeatureMoments:
    """The mean of the linear head's inputs, and their mean and variance for each class that is predicted.

    Sums in double precision are all that is kept. A variance is that of the samples measured (divided by
    their number), for each feature by itself; a class that is never predicted has zeros and a count of 0.
    """

    def __init__(self) -> None:
        self._sums = torch.zeros(0)
        self._squares = torch.zeros(0)
        self._counts = torch.zeros(0)

    def observe(self, seen: HeadFinder, logits: Tensor) -> None:
        """Take in the features of the forward that returned these logits; ModelError without a linear head.

        Samples with non-finite logits are left out.
        """
        head = seen.note(logits)
        if head.features is None:
            raise ModelError(
                "features=True needs a linear head, an nn.Linear that turns (N, D) features into the "
                f"model's logits: {head.refusal or 'no linear layer returned them'}; measure without it for "
                "methods that do not need features"
            )
        good = logits.isfinite().all(1)
        features, classes = head.features[good].double(), logits[good].argmax(1)
        if not len(self._counts):
            self._sums = features.new_zeros(logits.shape[1], features.shape[1])
            self._squares = torch.zeros_like(self._sums)
            self._counts = features.new_zeros(logits.shape[1])
        self._sums.index_add_(0, classes, features)
        self._squares.index_add_(0, classes, features.square())
        self._counts.index_add_(0, classes, features.new_ones(len(features)))

    def result(self) -> dict[str, Tensor]:
        """The mean (D), class_means and class_variances (C, D), and class_counts (C), on the CPU."""
        counts = self._counts[:, None]
        means = self._sums / counts.clamp(min=1)
        variances = (self._squares / counts.clamp(min=1) - means.square()).clamp(min=0)
        found = {
            "mean": self._sums.sum(0) / counts.sum().clamp(min=1),
            "class_means": means,
            "class_variances": variances,
            "class_counts": self._counts,
        }
        return {name: tensor.float().cpu() for name, tensor in found.items()}


def feature_spread(features: Mapping[str, Tensor]) -> Tensor:
    """The root mean square distance of source features from their mean, by their `FeatureMoments`."""
    counts = features["class_counts"]
    apart = (features["class_means"] - features["mean"]).square() + features["class_variances"]
    return ((counts * apart.sum(1)).sum() / counts.sum()).sqrt()


class Fisher:
    """The mean over batches of the squared gradient of the loss against the model's own answers.

    F = mean_b (∂/∂θ mean_{i∈b} CE(z_i, argmax z_i))², with the model as EATA adapts it: normalised by the
    batch's statistics. As in the authors' code it is the square of a batch's mean gradient, not the mean of
    the samples' squares, so it depends on the batch size; they use 2,000 samples in batches of 64 (Niu et
    al., ICML 2022).
    """

    def __init__(self, model: nn.Module, which: Parameters, outputs: OutputsFunction | None = None) -> None:
        self._outputs = outputs
        self._model = frozen_copy(model)
        self._parameters = select_parameters(self._model, which)
        for parameter in self._parameters.values():
            parameter.requires_grad_()
        device = device_of(self._model)
        self._plain_inputs = bool(self._parameters) and needs_contiguous(self._model, device)
        Layout(as_given=True).apply(self._model, device, self._parameters.values())
        self._sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in self._parameters.items()}
        self._batches = 0

    def observe(self, batch: Batch) -> None:
        """Take in a batch of samples with finite logits."""
        with torch.inference_mode(False), torch.enable_grad():
            inputs = batch.learnable()
            if self._plain_inputs:
                inputs = inputs.map(Tensor.contiguous)
            with batch_statistics(self._model, 0.0, inputs.rows):
                output = self._model(*inputs.args, **inputs.kwargs)
                logits = checked_logits(output, inputs.rows, None, self._outputs)
            loss = cross_entropy(at_least_single(logits), logits.argmax(1))
            gradients = gradients_of(loss, self._parameters)
        if not gradients:
            raise ModelError(
                "expected answers that depend on the parameters that fisher= chooses, but the loss depends "
                "on no parameter that adapts: a model with torch.no_grad inside its forward, or detached "
                "logits, has no gradients"
            )
        for name, gradient in gradients.items():
            self._sums[name] += gradient.float() ** 2
        self._batches += 1

    def result(self) -> dict[str, Tensor]:
        """The diagonal by the parameters' names, on the CPU."""
        return {name: (total / max(self._batches, 1)).cpu() for name, total in self._sums.items()}


WATCHED = 8
"""The number of batch norms that are watched: the first see changes of inputs, and little of classes."""

MARGIN = 3.0
"""The ratio of the divergence of a jump to that of source batches; 2 to 4 were tried (docs/rehearsal.md)."""


class SampleMoments:
    """The first and second moments of each sample in the first batch norms of a model, gathered in forwards.

    Args:
        model: the model, in eval mode.
        most: samples after which no more are gathered.
    """

    def __init__(self, model: nn.Module, most: int = 1000) -> None:
        self.layers, self._most = batch_norm_layers(model)[:WATCHED], most
        self._noted: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]  # in the last forward
        self._parts: dict[tuple[int, int], list[_Part]] = {}  # by layer, and by its uses in a forward
        self._count = 0

    @property
    def full(self) -> bool:
        """Whether no more samples are needed."""
        return not self.layers or self._count >= self._most

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Note the inputs of the layers in forwards of this block."""
        handles = [
            layer.register_forward_pre_hook(self._noting(place), with_kwargs=True)
            for place, layer in enumerate(self.layers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def name(self, classes: Tensor, good: Tensor) -> None:
        """Note the classes of the samples of the last forward, and forget those that are not good.

        A layer may see several rows of each sample, one after another. What it sees in other ways cannot be
        sorted by class, and sets no limit.
        """
        classes, good = classes.cpu(), good.cpu()
        for place, noted in enumerate(self._noted):
            for use, (first, second) in enumerate(noted):
                each, rest = divmod(len(first), len(good))
                if rest or not each:
                    continue
                own = good.repeat_interleave(each) & first.isfinite().all(1) & second.isfinite().all(1)
                part = _Part(first[own], second[own], classes.repeat_interleave(each)[own])
                self._parts.setdefault((place, use), []).append(part)
            noted.clear()
        self._count += int(good.sum())

    def _noting(self, place: int) -> Callable[..., None]:
        def note(_: _BatchNorm, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
            x = at_least_single(input_of(args, kwargs).detach())
            over = tuple(range(2, x.ndim))
            first, second = (x.mean(over), x.square().mean(over)) if over else (x, x.square())
            self._noted[place].append((first.cpu(), second.cpu()))

        return note

    def limits(self) -> Tensor:
        """The largest divergences of batches of samples that are sorted by class, for each layer and size.

        Times `MARGIN`: after one class, the running statistics are further from another than from all. A
        layer that saw no samples has limits that nothing exceeds.
        """
        found = torch.full((len(self.layers), len(SIZES)), torch.finfo(torch.float32).max)
        for place, layer in enumerate(self.layers):
            uses = [_joined(parts) for (at, _), parts in self._parts.items() if at == place]
            uses = [use for use in uses if len(use.classes)]
            for column, size in enumerate(SIZES if uses else ()):
                found[place, column] = MARGIN * max(_largest(layer, use, size) for use in uses)
        return found


class _Part(NamedTuple):
    """First and second moments of samples in a layer, and their classes."""

    first: Tensor
    second: Tensor
    classes: Tensor


def _joined(parts: list[_Part]) -> _Part:
    """All of them, sorted by class."""
    first, second, classes = (torch.cat(kind) for kind in zip(*parts, strict=True))
    order = classes.argsort(stable=True)
    return _Part(first[order], second[order], classes[order])


def _largest(layer: _BatchNorm, part: _Part, size: int) -> float:
    """The largest divergence of one batch after another from the statistics of a layer."""
    whole = max(len(part.classes) // size, 1)
    first, second = (
        rows[: whole * size].unflatten(0, (whole, -1)).mean(1) for rows in (part.first, part.second)
    )
    mean, var = (layer.get_buffer(name).float().cpu() for name in ("running_mean", "running_var"))
    return float(divergence(first, (second - first.square()).clamp(min=0), mean, var, layer.eps).max())
