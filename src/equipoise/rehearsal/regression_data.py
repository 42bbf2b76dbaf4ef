"""The regressions of a rehearsal, fitted to its streams."""

from functools import partial

import torch
from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.calibration import window
from equipoise.calibration.novelty import LEAST_LIMIT
from equipoise.calibration.process import SCATTER, Process, fit_process
from equipoise.calibration.rehearsal import Rehearsal, Run, logit
from equipoise.calibration.rehearsed import LEAD
from equipoise.calibration.ridge import fit_ridge
from equipoise.calibration.shifts import NO_SHIFT
from equipoise.rehearsal.streams import RehearsedStream

FLOORS = torch.tensor([0.3, 0.03, 0.1, 0.04, 0.05, 0.3, 0.1], dtype=torch.float64)
"""The least spread of each feature of a window: smaller changes over the shifts are noise."""

BY_ITSELF = FLOORS.index_fill(0, torch.tensor([window.FEATURES.index("disagreement")]), torch.inf)
"""The same for a model by itself: the disagreement with another one has no part in its estimate."""


def learned(
    adapter: Adapter, streams: list[RehearsedStream], samples: int, batch_size: int, seed: int
) -> Rehearsal:
    """Fit the regressions to the streams."""
    weight = torch.cat(
        [torch.full((len(s.windows),), 1 / len(s.windows), dtype=torch.float64) for s in streams]
    )
    snapshots = torch.cat([stream.windows for stream in streams])
    x = window.features(snapshots)  # n, models, features
    hits = torch.cat([stream.hits for stream in streams])
    still = next(s for s in streams if s.shift == NO_SHIFT and s.order == "shuffled")
    origin, at_rest = window.features(still.whole), _accuracies(still)
    shifts = [name for stream in streams for name in stream.shifts]
    fit = partial(fit_process, weight=weight, shifts=shifts, none=NO_SHIFT)
    counts, whole = snapshots[..., window.COUNT], still.whole[..., window.COUNT]

    def of_model(at: int, floors: Tensor) -> Process:
        exact = torch.stack([logit(at_rest[at]), _sampling(at_rest[at], whole[at])])
        noise = _sampling(hits[:, at], counts[:, at])
        return fit(
            x[:, at], logit(hits[:, at]), variance=noise, floors=floors, origin=origin[at], exact=exact
        )

    student = of_model(0, BY_ITSELF)
    compared, source, lead, gap, disagreement = None, None, None, None, None
    if x.shape[1] == 2:
        compared, source = of_model(0, FLOORS), of_model(1, BY_ITSELF)
        both, ahead = x.flatten(1), hits[:, 1] - hits[:, 0]
        lead = fit(
            both,
            ahead / LEAD,
            variance=torch.zeros_like(weight),
            floors=torch.cat([FLOORS, BY_ITSELF]),
            origin=origin.flatten(),
            exact=torch.stack([(at_rest[1] - at_rest[0]) / LEAD, torch.tensor(SCATTER**2, dtype=x.dtype)]),
        )
        gap = fit_ridge(both, logit(hits[:, 1]) - logit(hits[:, 0]), weight, torch.cat([FLOORS, FLOORS]))
        apart = window.disagreement(snapshots[:, 0])[ahead <= 0]
        disagreement = float(apart.max()) if len(apart) else 0.0
    unshifted = torch.tensor([name == NO_SHIFT for name in shifts])
    familiar = float(window.novelty(snapshots[unshifted, 0]).quantile(0.9).clamp(min=LEAST_LIMIT))
    wholes = torch.stack([stream.whole for stream in streams])
    right = window.temperature_for(wholes, torch.stack([_accuracies(stream) for stream in streams]))
    runs, bins = _runs(streams, student if compared is None else compared)
    return Rehearsal(
        method=adapter.name,
        options=adapter.rehearsed_options,
        samples=samples,
        batch_size=batch_size,
        seed=seed,
        runs=tuple(runs),
        student=student,
        compared=compared,
        source=source,
        lead=lead,
        gap=gap,
        familiar=familiar,
        reach=max(stream.weight_distance for stream in streams),
        disagreement=disagreement,
        prior=still.whole / whole.unsqueeze(1),
        coolest=right.amin(0).clamp(max=1.0),
        hottest=right.amax(0).clamp(min=1.0),
        bins=bins,
    )


def _sampling(accuracy: Tensor, count: Tensor) -> Tensor:
    """The variance of the logit of an accuracy over some samples."""
    return 1 / (count * accuracy * (1 - accuracy) + 1)


def _accuracies(stream: RehearsedStream) -> Tensor:
    """The accuracies of the models over a whole stream."""
    own = [float(stream.right.double().mean())]
    return torch.tensor(own if stream.source_right is None else [*own, stream.source_right]).double()


def _runs(streams: list[RehearsedStream], process: Process) -> tuple[list[Run], Tensor]:
    """The result of each stream by the estimate that never saw its shift, and bins of confidence."""
    alone, at = process.left_out(), 0
    runs, bins = [], torch.zeros(2, 3, 15, dtype=torch.float64)
    for stream in streams:
        estimate = float(alone[at : at + len(stream.windows)].sigmoid().mean())
        at += len(stream.windows)
        own = stream.whole[0]
        temperature = window.temperature_for(own, torch.tensor(estimate, dtype=torch.float64))
        runs.append(
            Run(
                stream.shift,
                stream.order,
                float(stream.right.double().mean()),
                float(own[window.CONFIDENCE] / own[window.COUNT]),
                estimate,
                float(temperature),
                stream.source_right,
            )
        )
        for place, confidence in enumerate(window.confidence_at(stream.confidences, temperature)):
            bins[place] += _binned(confidence, stream.right)
    return runs, bins


def _binned(confidence: Tensor, right: Tensor) -> Tensor:
    """Counts, sums of confidence and hits in 15 bins of equal width, (lo, hi]."""
    place = (confidence * 15).ceil().long().sub(1).clamp(0, 14)
    parts = (torch.ones_like(confidence), confidence, right.to(confidence))
    return torch.stack(
        [torch.zeros(15, dtype=torch.float64).scatter_add(0, place, p.double()) for p in parts]
    )
