"""Estimates from the matrix of probabilities: its nuclear norm, and its transport to labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.errors import OptionError
from equipoise.estimators.inputs import Doubles, held_out, result, stream, wide
from equipoise.metrics.inputs import by_name
from equipoise.options import number


@by_name
def nuclear_norm(*, logits: Tensor) -> Tensor:
    """The nuclear norm of the probabilities over the largest it can be: Σ_i σ_i(P) / √(min(N, C) · N).

    P is the (N, C) matrix of softmax(z) and σ_i are its singular values. It is 1 for certain answers that use
    all classes alike, and 1 / C for uniform ones. It is a score in (0, 1] that goes along with accuracy and
    not an accuracy itself: `NuclearNorm` makes one of it. Deng et al., "Confidence and Dispersity Speak",
    ICML 2023; "Confidence and Dispersity as Signals", arXiv 2510.02956.

    Deviations: none. The norm depends on N where samples are few; give it a window of one size.

    >>> nuclear_norm(logits=torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log())
    tensor(1.)
    >>> nuclear_norm(logits=torch.zeros(4, 2))
    tensor(0.5000)
    """
    scores = stream(logits)
    samples, classes = scores.values.shape
    if not samples:
        return result(torch.nan, scores)
    # P and its factor R of P = QR have the same singular values, and R is C x C.
    table = wide(scores).softmax(1)
    table = torch.linalg.qr(table, mode="r").R if samples > classes else table
    return result(torch.linalg.svdvals(table).sum() / (min(samples, classes) * samples) ** 0.5, scores)


@dataclass(frozen=True)
class NuclearNorm:
    """The accuracy by a straight line over the nuclear norm: slope · s + intercept, held in [0, 1].

    The line is the least-squares fit to several labelled sets: held-out data, and the same under made-up
    shifts, so that scores differ. Deng et al., ICML 2023, for the score s (`nuclear_norm`); Deng and Zheng,
    "Are Labels Always Necessary for Classifier Accuracy Evaluation?", CVPR 2021, for a regression over
    made-up sets.

    Deviations: the sets are the caller's, and so is how good the line is far from them.

    Attributes:
        slope: of the line.
        intercept: of the line.

    >>> sure, unsure = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log(), torch.zeros(2, 2)
    >>> fitted = NuclearNorm.fit(logits=[sure, unsure], target=[torch.tensor([0, 1]), torch.tensor([0, 1])])
    >>> fitted.accuracy(logits=unsure)
    tensor(0.5000)
    """

    slope: float
    intercept: float

    def __post_init__(self) -> None:
        for name in ("slope", "intercept"):
            object.__setattr__(self, name, number(name, getattr(self, name)))

    @classmethod
    @by_name
    def fit(cls, *, logits: Sequence[Tensor], target: Sequence[Tensor]) -> "NuclearNorm":
        """The estimator with the line over labelled sets: the logits and the labels of each."""
        if isinstance(logits, Tensor) or isinstance(target, Tensor) or len(logits) != len(target):
            raise OptionError(
                "expected logits and target as lists of as many tensors, one of each for every labelled set"
            )
        points = []
        for one, labels_of_one in zip(logits, target, strict=True):
            scores, labels = held_out(one, labels_of_one)
            points.append((float(nuclear_norm(logits=one)), float(scores.correct(labels).mean())))
        norms, accuracies = torch.tensor(points, dtype=torch.float64).reshape(-1, 2).T
        apart = norms - norms.mean()
        if len(points) < 2 or float(apart.abs().max()) < 1e-6:
            raise OptionError(
                f"expected at least two labelled sets of different nuclear norms, got {norms.tolist()}: add "
                "held-out data under made-up shifts"
            )
        slope = float((apart * accuracies).sum() / apart.square().sum())
        return cls(slope, float(accuracies.mean() - slope * norms.mean()))

    @by_name
    def accuracy(self, *, logits: Tensor) -> Tensor:
        """The estimate for unlabelled logits."""
        return (self.slope * nuclear_norm(logits=logits) + self.intercept).clamp(0, 1)


_Integers = npt.NDArray[np.int64]

_GRID = 2.0**40  # steps in 1: sums and differences of numbers on it are exact in float64


@dataclass(frozen=True, eq=False)
class COT:
    """The most that answers can agree with labels in the shares of the source: max over y of mean p_y.

    Each of N samples is given a label y, as many of class c as N π_c with π the shares of the labels of
    held-out data, so that the mean of p_y = softmax(z)_y is as large as it can be; 1 minus it is the cost of
    the optimal transport from the rows of probabilities to the labels, where the distance of p and a label is
    half of their L1 distance, 1 - p_y. The estimate is never above the mean confidence, and right only where
    the stream has the shares of the source. Lu et al., "Characterizing Out-of-Distribution Error via Optimal
    Transport", NeurIPS 2023 (arXiv 2302.05018), who temper the logits by `fit_temperature` before; divide
    them by it to do the same.

    Deviations: N π_c is rounded to whole numbers of samples that add up to N (largest remainders), where the
    authors draw labels from π; all samples are matched at once, where the authors take means over draws
    of 10,000. The matching is exact, with memory for N x C numbers, and its time grows with C² and with the
    number of samples that do not get their predicted class: ten seconds for 10,000 samples of 200 classes,
    all predicted to be of one.

    Attributes:
        shares: of the classes, shape (C,), with sum 1.

    >>> held_out = torch.zeros(4, 2)
    >>> fitted = COT.fit(logits=held_out, target=torch.tensor([0, 0, 1, 1]))
    >>> fitted.accuracy(logits=torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log())  # (0.9 + 0.4) / 2
    tensor(0.6500)
    """

    shares: Tensor

    def __post_init__(self) -> None:
        shares: Any = self.shares
        valid = isinstance(shares, Tensor) and shares.ndim == 1 and shares.is_floating_point()
        if not (valid and bool((shares >= 0).all()) and abs(float(shares.double().sum()) - 1) < 1e-3):
            raise OptionError(f"expected shares of the classes, of shape (C,) and with sum 1, got {shares!r}")

    @classmethod
    @by_name
    def fit(cls, *, logits: Tensor, target: Tensor) -> "COT":
        """The estimator with the shares of held-out labels; the logits say how many classes there are."""
        scores, labels = held_out(logits, target)
        counts = torch.bincount(labels.cpu(), minlength=scores.values.shape[1])
        return cls(counts.double() / len(labels))

    @by_name
    def accuracy(self, *, logits: Tensor) -> Tensor:
        """The estimate for unlabelled logits."""
        scores = stream(logits, len(self.shares))
        if not len(scores.values):
            return result(torch.nan, scores)
        probs = wide(scores).softmax(1).cpu().double().numpy()
        places = whole_numbers(self.shares.cpu().double().numpy(), len(probs))
        return result(float(probs[np.arange(len(probs)), matched(probs, places)].mean()), scores)


def whole_numbers(shares: Doubles, total: int) -> _Integers:
    """Whole numbers with a given sum, as near to `shares * total` as can be: largest remainders go up."""
    exact = shares / shares.sum() * total
    counts: _Integers = np.floor(exact).astype(np.int64)
    upwards = np.argsort(counts - exact, kind="stable")[: total - int(counts.sum())]
    counts[upwards] += 1
    return counts


def matched(values: Doubles, places: _Integers) -> _Integers:
    """The class of each row, class c taken places[c] times, of the largest sum of values[row, class].

    Successive shortest paths: rows start in their best class, and as long as a class has more rows than
    places, one row leaves it by the cheapest chain of moves, class to class, to one with places left. Values
    are rounded to multiples of 2^-40: rounding in sums could close a chain of moves to a circle.
    """
    values = np.rint(values * _GRID) / _GRID
    classes = values.shape[1]
    chosen: _Integers = values.argmax(1).astype(np.int64)
    excess = np.bincount(chosen, minlength=classes) - places
    loss = np.full((classes, classes), np.inf)  # [a, b]: of the row that moves from a to b at the lowest one
    mover = np.zeros((classes, classes), dtype=np.int64)

    def look_at(start: int, ends: _Integers) -> None:
        rows = np.flatnonzero(chosen == start)
        loss[start, ends] = np.inf
        if len(rows):
            losses = values[rows, start][:, None] - values[np.ix_(rows, ends)]
            cheapest = losses.argmin(0)
            loss[start, ends], mover[start, ends] = losses[cheapest, np.arange(len(ends))], rows[cheapest]
        loss[start, start] = np.inf

    for start in range(classes):
        look_at(start, np.arange(classes))
    while (excess > 0).any():
        cost, before = _cheapest_paths(loss, excess > 0)
        end = int(np.where(excess < 0, cost, np.inf).argmin())
        excess[end] += 1
        moves = []
        while (start := int(before[end])) >= 0:
            moves.append((int(mover[start, end]), start, end))
            end = start
        excess[end] -= 1
        for row, _, end in moves:
            chosen[row] = end
        for row, start, end in moves:
            look_at(start, np.flatnonzero(mover[start] == row))
            losses = values[row, end] - values[row]
            lower = losses < loss[end]
            lower[end] = False
            loss[end, lower], mover[end, lower] = losses[lower], row
    return chosen


def _cheapest_paths(loss: Doubles, starts: npt.NDArray[np.bool_]) -> tuple[Doubles, _Integers]:
    """The cost of the cheapest path to each class from any start, and the class before it; -1 at a start."""
    cost = np.where(starts, 0.0, np.inf)
    before = np.full(len(cost), -1, dtype=np.int64)
    for _ in range(len(cost)):  # Bellman-Ford: losses may be negative, cycles of them are not
        through = cost[:, None] + loss
        nearest = through.argmin(0)
        costs = through[nearest, np.arange(len(cost))]
        cheaper = costs < cost
        if not cheaper.any():
            break
        cost, before = np.where(cheaper, costs, cost), np.where(cheaper, nearest, before)
    return cost, before
