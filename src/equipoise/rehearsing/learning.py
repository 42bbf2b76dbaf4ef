"""The regressions of a rehearsal, fitted to its streams."""

import torch
from torch import Tensor

from equipoise.adapter import Adapter
from equipoise.calibration import window
from equipoise.calibration.rehearsal import FLOORS, Rehearsal, Run, logit
from equipoise.calibration.ridge import fit_ridge, left_out
from equipoise.calibration.shifts import NO_SHIFT
from equipoise.rehearsing.streams import RehearsedStream


def learned(
    adapter: Adapter, streams: list[RehearsedStream], samples: int, batch_size: int, seed: int
) -> Rehearsal:
    """Fit the regressions to the streams, each with the same weight whatever its length."""
    groups = [stream.shift for stream in streams for _ in stream.windows]
    weight = torch.cat(
        [torch.full((len(s.windows),), 1 / len(s.windows), dtype=torch.float64) for s in streams]
    )
    x = window.features(torch.cat([stream.windows for stream in streams]))  # n, models, features
    y = logit(torch.cat([stream.hits for stream in streams]))
    student = fit_ridge(x[:, 0], y[:, 0], weight, groups, FLOORS)
    alone = left_out(x[:, 0], y[:, 0], weight, groups, FLOORS)
    gap, margin = None, torch.zeros((), dtype=torch.float64)
    if x.shape[1] == 2:
        both, floors = x.flatten(1), torch.cat([FLOORS, FLOORS])
        middle = y.mean(1).sigmoid()
        heavier = weight * (middle * (1 - middle) + 0.02)  # the slope of the accuracy in its logit
        gap = fit_ridge(both, y[:, 1] - y[:, 0], heavier, groups, floors)
        theirs = alone + left_out(both, y[:, 1] - y[:, 0], heavier, groups, floors)
        margin = (theirs - y[:, 1]).abs().quantile(0.9)
    wholes = torch.stack([stream.whole for stream in streams])
    accuracies = torch.cat(
        [(s.hits[-1:] if len(s.hits) == 1 else s.hits.mean(0, keepdim=True)) for s in streams]
    )
    right = window.temperature_for(wholes, accuracies)
    runs, bins, at = [], torch.zeros(2, 3, 15, dtype=torch.float64), 0
    for stream in streams:
        estimate = float(alone[at : at + len(stream.windows)].sigmoid().mean())
        at += len(stream.windows)
        temperature = window.temperature_for(stream.whole[0], torch.tensor(estimate, dtype=torch.float64))
        own = stream.whole[0]
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
    prior = next(s.whole for s in streams if s.shift == NO_SHIFT and s.order == "shuffled")
    return Rehearsal(
        method=adapter.name,
        options=adapter.rehearsed_options,
        samples=samples,
        batch_size=batch_size,
        seed=seed,
        runs=tuple(runs),
        student=student,
        gap=gap,
        source_margin=margin,
        prior=prior / prior[:, window.COUNT, None],
        hottest=right.amax(0),
        bins=bins,
    )


def _binned(confidence: Tensor, right: Tensor) -> Tensor:
    """Counts, sums of confidence and hits in 15 bins of equal width, (lo, hi]."""
    place = (confidence * 15).ceil().long().sub(1).clamp(0, 14)
    parts = (torch.ones_like(confidence), confidence, right.to(confidence))
    return torch.stack(
        [torch.zeros(15, dtype=torch.float64).scatter_add(0, place, p.double()) for p in parts]
    )
