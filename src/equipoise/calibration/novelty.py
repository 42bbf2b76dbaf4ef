"""How unlike source samples the inputs of a stream are, whatever a model answers to them."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.functional import at_least_single
from equipoise.network.images import images_among

KEPT = 250
"""Source samples that distances are measured to; 125 to 500 differ little."""

MOST_NUMBERS = 2**20
"""The most numbers that they may have together; inputs too wide for 32 of them have no novelty."""

FARTHEST = 4.0
"""The most novelty of a sample: 55 times as far as usual. A single row shall not decide for a window."""

HALF_LIFE, PRIOR_SAMPLES = 300.0, 50.0
"""The memory of `after` in samples, and the samples of no novelty that it starts with."""

ROWS = 250
"""Source rows of a window that the limit is measured over."""

SORTED_BY = 12
"""Columns that source rows are sorted by for it."""

LEAST_LIMIT = 0.2
"""The least limit: rows that are 22 % further from source rows than these are from one another."""

_FEWEST_KEPT, _MOST_SEEN, _TINY = 32, 2000, 1e-6


class Numbers(NamedTuple):
    """Numbers that describe samples.

    Attributes:
        values: a row for each sample, (N, D).
        whole: whether they are all of the inputs, as the columns of a table are; not so for images.
    """

    values: Tensor
    whole: bool


def numbers_of(samples: Mapping[str, Tensor]) -> Numbers | None:
    """Numbers that describe samples: all columns of tables of floats, a few statistics of images.

    Of tables (N, F) they are the columns, in the order of the tables' names; of images (N, C, H, W), for each
    channel, the mean, the standard deviation, and the mean distance of neighbours in rows and in columns.
    None for other inputs, such as tokens.
    """
    named = sorted(samples.items())
    tables = [x.detach() for _, x in named if x.ndim == 2 and x.is_floating_point()]
    if tables:
        whole = all(x.ndim == 2 and x.is_floating_point() for x in samples.values())
        return Numbers(torch.cat([at_least_single(x) for x in tables], 1), whole)
    images = [x.detach() for x in images_among(samples).values() if min(x.shape[2:]) > 1]
    if len(images) != 1:
        return None
    x = images[0] if images[0].is_floating_point() else images[0].float()
    x, over = at_least_single(x), (2, 3)
    variance, mean = torch.var_mean(x, over, correction=0)
    across, down = x.diff(dim=3).abs().mean(over), x.diff(dim=2).abs().mean(over)
    return Numbers(torch.cat([mean, variance.sqrt(), across, down], 1), False)


class SourceInputs:
    """Numbers that describe source samples, of which novelty is measured; the first 2,000 samples count."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._whole, self._seen = True, 0

    def observe(self, samples: Mapping[str, Tensor], logits: Tensor) -> None:
        """Take in the inputs of a forward, and its logits; samples that are not finite are left out."""
        if self._seen >= _MOST_SEEN or (found := numbers_of(samples)) is None:
            return
        good = found.values.isfinite().all(1) & logits.isfinite().all(1)
        self._parts.append((found.values[good].float().cpu(), logits[good].argmax(1).cpu()))
        self._whole &= found.whole
        self._seen += int(good.sum())

    def result(self) -> dict[str, Tensor]:
        """What `Novelty` needs, by name; empty where the inputs have no numbers, or too many.

        "scale" (D): the standard deviation of each number; that of the middle one for a number that never
        varied, and at least a twentieth of it. "kept" (M, D): samples over the scale. "usual": the mean of
        ln d of source samples. "limit", of tables alone: see `_limit`.
        """
        widths = {values.shape[1] for values, _ in self._parts}
        if len(widths) != 1 or self._seen < _FEWEST_KEPT:
            return {}
        values, classes = (torch.cat(kind) for kind in zip(*self._parts, strict=True))
        spread = values.std(0)
        varied = spread[spread > 0]
        count = min(KEPT, MOST_NUMBERS // values.shape[1])
        if not len(varied) or count < _FEWEST_KEPT:
            return {}
        typical = varied.median()
        scale = torch.where(spread > 0, spread, typical).maximum(typical / 20)
        kept = (values / scale)[:: max(1, len(values) // count)][:count]
        far = _log_distance(values / scale, kept)
        found = {"scale": scale, "kept": kept, "usual": far.mean()}
        return found | ({"limit": _limit(far - far.mean(), values, classes)} if self._whole else {})


def _limit(novelty: Tensor, values: Tensor, classes: Tensor) -> Tensor:
    """The novelty that 95 % of windows of source rows keep below, in whatever order they come.

    Windows of 250 rows that are sorted by class, by one column, or not at all: rows of one kind are a little
    further from all source rows than a mixture, and nothing is new about them.
    """
    rows = min(ROWS, max(1, len(values) // 4))
    varied = (values.std(0) > 0).nonzero().flatten()
    chosen = varied[:: max(1, len(varied) // SORTED_BY)][:SORTED_BY]
    orders = [torch.arange(len(values)), classes.argsort(stable=True)]
    orders += [values[:, column].argsort(stable=True) for column in chosen.tolist()]
    windows = [novelty[order][: len(order) // rows * rows].view(-1, rows).mean(1) for order in orders]
    return torch.cat(windows).quantile(0.95).clamp(min=LEAST_LIMIT)


def _log_distance(z: Tensor, kept: Tensor) -> Tensor:
    """The logarithm of the distance of rows from the second nearest of those kept, of which it may be one."""
    with torch.autocast(z.device.type, enabled=False):
        near = torch.cdist(z, kept).topk(2, largest=False).values[:, 1]
    return near.clamp(min=_TINY).log()


class Novelty:
    """How much further samples are from source samples than these are from one another.

    n_i = ln d_i − mean ln d, where d is the distance from the second nearest of 250 source samples, of
    numbers that describe the inputs (`numbers_of`) over their spreads, and the mean is over source samples;
    from −4 to 4. It is near 0 for source samples, in any order and in any shares of classes, and needs no
    answer of a model. Distances of images are of a few statistics: what they show is new, but images that
    they do not show as new may be.

    Args:
        known: `SourceInputs.result`, not empty.
    """

    def __init__(self, known: Mapping[str, Tensor]) -> None:
        self._known = dict(known)
        self._near: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(self, samples: Mapping[str, Tensor]) -> Tensor | None:
        """The novelty of each sample, (N,); None for inputs of another kind than those measured."""
        found = numbers_of(samples)
        if found is None or found.values.shape[1] != len(self._known["scale"]):
            return None
        scale, kept, usual = self._on(found.values.device)
        apart = _log_distance(found.values.to(scale) / scale, kept) - usual
        return apart.nan_to_num(FARTHEST).clamp(-FARTHEST, FARTHEST)

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """The numbers on a device; copied there once."""
        if device not in self._near:
            with torch.inference_mode(False):
                scale, kept, usual = (self._known[name].to(device) for name in ("scale", "kept", "usual"))
            self._near[device] = (scale, kept, usual)
        return self._near[device]


def at_rest(device: torch.device) -> Tensor:
    """The sums of a window of novelty before the first batch: of novelty over its limit, and of samples."""
    return torch.tensor([0.0, PRIOR_SAMPLES], device=device)


def after(sums: Tensor, novelty: Tensor, limit: Tensor) -> Tensor:
    """The sums after a batch, which forget by 2^(−n / 300) for its n samples."""
    fresh = torch.stack([(novelty / limit.to(novelty)).sum(), torch.ones_like(novelty).sum()])
    return sums * 2 ** (-len(novelty) / HALF_LIFE) + fresh.to(sums)


def share_of_new(sums: Tensor) -> Tensor:
    """The share of what is new: 0 while the mean novelty is within its limit, 1 from twice the limit on."""
    return (sums[0] / sums[1] - 1).clamp(0, 1)
