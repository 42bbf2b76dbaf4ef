"""The novelty of inputs: their distance from source inputs, whatever a model answers to them."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.calibration.window import HALF_LIFE, PRIOR_SAMPLES
from equipoise.functional import at_least_single
from equipoise.network.batch import images_among

KEPT_INPUTS = 250
"""Source samples that distances are measured to, one in eight at most; 125 to 500 differ little."""

MOST_NUMBERS = 2**20
"""The most numbers that they may have together; inputs too wide for 32 of them have no novelty."""

NEAREST = 0.05
"""The least distance that counts, in spreads: equal rows, which flags often make, are as near as that."""

FARTHEST = 4.0
"""The most novelty of a sample: 55 times as far as usual. A single row shall not decide for a window."""

WINDOW_ROWS = 250
"""Source rows of a window that the limit is measured over."""

SORTED_BY = 12
"""Columns that source rows are sorted by for it."""

LEAST_LIMIT = 0.2
"""The least limit: rows that are 22 % further from source rows than these are from one another."""

_FEWEST_KEPT, _ONE_IN, _MOST_SEEN, _MOST_PIXELS = 32, 8, 2000, 64


class Numbers(NamedTuple):
    """Numbers that describe samples.

    Attributes:
        values: a row for each sample, (N, D).
        whole: whether they are all of the inputs, as the columns of a table are; not so for images.
    """

    values: Tensor
    whole: bool


def numbers_of(samples: Mapping[str, Tensor]) -> Numbers | None:
    """Numbers that describe samples: statistics of the images, and all columns of tables of floats.

    Of images (N, C, H, W) they are, for each channel, the mean, the standard deviation, and the mean distance
    of neighbours in rows and in columns, of large ones on a grid; of tables (N, F) the columns. None without
    either. Inputs count in the order of their names, however a call has them.
    """
    ordered = [samples[name].detach() for name in sorted(samples)]
    tables = [x for x in ordered if x.ndim == 2 and x.is_floating_point()]
    images = [x.detach() for x in images_among(samples).values() if min(x.shape[2:]) > 1]
    parts = [_of_images(images[0])] if len(images) == 1 else []
    parts += [at_least_single(x) for x in tables]
    return Numbers(torch.cat(parts, 1), len(tables) == len(ordered)) if parts else None


def _of_images(images: Tensor) -> Tensor:
    step = max(1, min(images.shape[2:]) // _MOST_PIXELS)
    x = images[:, :, ::step] if images.is_floating_point() else images[:, :, ::step].float()
    x = at_least_single(x)
    across = (x[..., 1::step] - x[..., :-1:step]).abs_().mean((2, 3))
    below = images[:, :, 1::step, ::step]
    down = (below.to(x) - x[:, :, : below.shape[2], ::step]).abs_().mean((2, 3))
    variance, mean = torch.var_mean(x[..., ::step], (2, 3), correction=0)
    return torch.cat([mean, variance.sqrt(), across, down], 1)


NEEDED = ("mean", "scale", "kept", "usual")
"""The names of what `Novelty` needs of source inputs."""


class SourceInputs:
    """Numbers that describe source samples, of which novelty is measured; the first 2,000 samples count."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._shapes: set[torch.Size] = set()
        self._whole, self._seen = True, 0

    def observe(self, samples: Mapping[str, Tensor], logits: Tensor) -> None:
        """Take in the inputs of a forward, and its logits; samples that are not finite are left out."""
        if self._seen >= _MOST_SEEN or (found := numbers_of(samples)) is None:
            return
        values = found.values.float()
        if values.shape[1] * _FEWEST_KEPT > MOST_NUMBERS:
            return
        good = (values.isfinite().all(1) & logits.isfinite().all(1)).nonzero().flatten()
        good = good[: _MOST_SEEN - self._seen]
        self._parts.append((values[good].cpu(), logits[good].argmax(1).cpu()))
        self._shapes |= {x.shape[1:] for x in samples.values()}
        self._whole &= found.whole
        self._seen += len(good)

    def result(self) -> dict[str, Tensor]:
        """The numbers that `Novelty` needs, by name; empty without any, with too many, or too few rows.

        "mean" (D) and "scale" (D): the mean and the standard deviation of each number; that of the middle one
        for a number that never varied, and at least a twentieth of it. "kept" (M, D): samples less the mean,
        over the scale. "usual": the mean of ln d of the other source samples. "limit", of tables alone: see
        `_limit`. "shape", where all tensors have one: that of a sample.
        """
        widths = {values.shape[1] for values, _ in self._parts}
        if len(widths) != 1:
            return {}
        values, classes = (torch.cat(kind) for kind in zip(*self._parts, strict=True))
        count = min(KEPT_INPUTS, len(values) // _ONE_IN, MOST_NUMBERS // values.shape[1])
        if count < _FEWEST_KEPT:
            return {}
        spread = values.std(0)
        varied = spread[(spread > 0) & spread.isfinite()]
        if not len(varied):
            return {}
        typical, mean = varied.median(), values.mean(0)
        scale = torch.where(spread > 0, spread, typical).maximum(typical / 20)
        rows = torch.linspace(0, len(values) - 1, count).long()
        others = torch.ones(len(values), dtype=torch.bool).index_fill(0, rows, value=False)
        z = (values - mean) / scale
        if not bool(z.isfinite().all()):
            return {}
        far = _log_distance(z[others], _Kept.of(z[rows], z.device))
        found = {"mean": mean, "scale": scale, "kept": z[rows], "usual": far.mean()}
        if len(self._shapes) == 1:
            found["shape"] = torch.tensor(next(iter(self._shapes)), dtype=torch.long)
        if self._whole:
            found["limit"] = _limit(far - far.mean(), values[others], classes[others])
        return found


def _limit(novelty: Tensor, values: Tensor, classes: Tensor) -> Tensor:
    """The novelty that 95 % of windows of source rows keep below; at least `LEAST_LIMIT`.

    Windows of 250 rows that are sorted by class, by one of twelve columns, or not at all: rows of one kind
    are a little further from all source rows than a mixture, and nothing is new about them.
    """
    rows = min(WINDOW_ROWS, max(1, len(values) // 4))
    varied = (values.std(0) > 0).nonzero().flatten()
    chosen = varied[:: max(1, len(varied) // SORTED_BY)][:SORTED_BY]
    orders = [torch.arange(len(values)), classes.argsort(stable=True)]
    orders += [values[:, column].argsort(stable=True) for column in chosen.tolist()]
    own = novelty.clamp(-FARTHEST, FARTHEST)
    windows = [own[order][: len(order) // rows * rows].view(-1, rows).mean(1) for order in orders]
    return torch.cat(windows).quantile(0.95).clamp(min=LEAST_LIMIT)


class _Kept(NamedTuple):
    """Source samples that distances are measured to.

    Attributes:
        columns: the samples less the mean, over the scale; (D, M).
        squares: their squared norms, (M).
    """

    columns: Tensor
    squares: Tensor

    @classmethod
    def of(cls, kept: Tensor, device: torch.device) -> "_Kept":
        """Make it from samples (M, D), on a device."""
        # Twice the digits: norms of rows are larger than the distance of those that are near each other.
        # Apple's GPUs do not have them.
        home = torch.device("cpu") if device.type == "mps" else device
        wide = kept.to(home).double()
        return cls(wide.T.contiguous(), wide.square().sum(1))


def _log_distance(z: Tensor, kept: _Kept) -> Tensor:
    """The logarithm of the distance of rows from the second nearest of those kept.

    Of d² = ‖z‖² + ‖k‖² − 2 z · k only the last two decide which is near.
    """
    wide = z.to(kept.columns.device).double()
    with torch.autocast(wide.device.type, enabled=False):
        beyond = torch.addmm(kept.squares, wide, kept.columns, alpha=-2)
    nearest = beyond.argmin(1, keepdim=True)  # as topk of two does, in less time
    second = beyond.scatter_(1, nearest, torch.inf).amin(1) + wide.square().sum(1)
    return second.clamp(min=NEAREST**2).log().to(z) / 2


class Novelty:
    """The distance of samples from source samples, beyond that of source samples from one another.

    n_i = ln d_i − mean ln d, where d is the distance from the second nearest of 250 source samples, of
    numbers that describe the inputs (`numbers_of`) over their spreads, and the mean is over source samples;
    from −4 to 4. It is near 0 for source samples, in any order and in any shares of classes, and needs no
    answer of a model. Of images only a few statistics are compared: images may be new in ways that these do
    not show.

    Args:
        known: `SourceInputs.result`, not empty.
    """

    def __init__(self, known: Mapping[str, Tensor]) -> None:
        self._known = dict(known)
        self._near: dict[torch.device, _Near] = {}

    def __call__(self, samples: Mapping[str, Tensor]) -> Tensor | None:
        """The novelty of each sample, (N,); None for inputs of another kind than those measured."""
        found = numbers_of(samples)
        if found is None or found.values.shape[1] != len(self._known["scale"]):
            return None
        known = self._on(found.values.device)
        z = (found.values.to(known.mean) - known.mean) * known.per_scale
        return (_log_distance(z, known.kept) - known.usual).nan_to_num(FARTHEST).clamp(-FARTHEST, FARTHEST)

    def _on(self, device: torch.device) -> "_Near":
        """The numbers on a device; copied there once."""
        if device not in self._near:
            with torch.inference_mode(False):
                mean, scale, usual = (self._known[name].to(device) for name in ("mean", "scale", "usual"))
                self._near[device] = _Near(mean, 1 / scale, _Kept.of(self._known["kept"], device), usual)
        return self._near[device]


class _Near(NamedTuple):
    """Numbers of `SourceInputs.result` on a device: "mean", 1 / "scale", "kept" and "usual"."""

    mean: Tensor
    per_scale: Tensor
    kept: _Kept
    usual: Tensor


def nothing_new(like: Tensor) -> Tensor:
    """The sums of a window of novelty before the first batch: of novelty over its limit, and of samples.

    On the device and in the type of another tensor, at least in single precision.
    """
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.tensor([0.0, float(PRIOR_SAMPLES)], device=like.device, dtype=wide)


def novelty_after(sums: Tensor, novelty: Tensor, limit: Tensor) -> Tensor:
    """The sums of a window after a batch, which forget by 2^(−n / 300) for its n samples, as answers do."""
    fresh = torch.stack([(novelty / limit.to(novelty)).sum(), torch.ones_like(novelty).sum()])
    return sums * 2 ** (-len(novelty) / HALF_LIFE) + fresh.to(sums)


def share_of_new(sums: Tensor) -> Tensor:
    """The share of what is new: 0 while the mean novelty is within its limit, 1 from twice the limit on."""
    return (sums[0] / sums[1] - 1).clamp(0, 1)
