"""The nuclear norm of the matrix of probabilities: how sure answers are, and how many classes they use."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.errors import OptionError
from equipoise.estimators.inputs import held_out, result, stream, wide
from equipoise.metrics.keywords import by_name
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
