"""The JSON that a run writes: a line for every cell in results.jsonl, for every stream in streams.jsonl."""

from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict  # pydantic reads these on every Python

Protocol = Literal["online", "after-pass"]
"""The answers that are scored: those given while adapting, or those of a second pass after adapting."""

RAW = "none"
"""The tempering of logits that are not divided."""
REHEARSED = "rehearsed"
"""The tempering by a rehearsal on held-out source images."""


class RehearsalSize(TypedDict):
    """The held-out source images of a rehearsal, at most, and the number of its made-up shifts; None: all."""

    images: int
    shifts: int | None


class ModelOnStream(TypedDict):
    """The model, the stream and the images that a result is of.

    Attributes:
        data: the data set's name.
        backbone: the model's name.
        target: the unseen domain.
        tier: the strength of the shift, where the data set has several strengths.
        seed: of the training and of the order of the stream.
        limit: the most images of each part of the data set, or None.
        epochs: of the source training.
        input_size: the side that images are resized to inside the model, or None for that of the data set.
        order: the kind of the stream, as "shuffled" or "continual".
        order_options: of that kind of stream, defaults included, where it has any.
        domain_images: the most images of each domain of the stream, where that is not `limit`.
        origin: of the images: "official", or "made" here (corruptions, with a procedural frost).
    """

    data: str
    backbone: str
    target: str
    tier: int | None
    seed: int
    limit: int | None
    epochs: int
    input_size: int | None
    order: str
    order_options: NotRequired[dict[str, Any]]
    domain_images: NotRequired[int]
    origin: str


class Cell(ModelOnStream):
    """One experiment: all inputs of its result; a hash of them is its key.

    Attributes:
        label: the recipe's name for the method with these options ("dec", "dec-released").
        method: the method's name in the registry.
        code: a hash of the source files that the method's answers depend on.
        options: its options as it uses them, defaults included, without `tempering`.
        tempering: the divisor of the logits: "none", "mean", "median", "sample", "agreement", "rehearsed" (by
            a rehearsal on held-out source images; the source model may answer as well), or "fixed", the one
            temperature that is best on the source.
        protocol: the answers that are scored.
        batch_size: of the stream.
        model: the key of the trained model: a hash of its recipe, its weights before training and its data.
        stream: a hash of the images of the stream.
        rehearsal: the size of the rehearsal, where the tempering is "rehearsed".
    """

    label: str
    method: str
    code: str
    options: dict[str, Any]
    tempering: str
    protocol: Protocol
    batch_size: int
    model: str
    stream: str
    rehearsal: NotRequired[RehearsalSize]


class CellScores(TypedDict):
    """Accuracy and ECE (15 bins) in 0..1, entropy in bits, NLL in nats, Brier score in 0..2."""

    accuracy: float
    ece: float
    entropy: float
    nll: float
    brier: float


class ReliabilitySums(TypedDict):
    """Answers in 15 bins of equal width by confidence: counts, and sums of confidence and of hits."""

    count: list[int]
    confidence: list[float]
    correct: list[int]


class EstimatedAccuracy(TypedDict):
    """The accuracy that an adapter estimates without labels: its value and a 90 % interval."""

    value: float
    low: float
    high: float


class StreamEstimate(EstimatedAccuracy):
    """The means of the estimates after each batch of a stream.

    `covered` is the share of batches at which the interval held the accuracy of the last 500 images, `off`
    the mean distance of the estimate from that accuracy.
    """

    covered: float
    off: NotRequired[float]


class OracleScores(TypedDict):
    """The scores at the one temperature with the least NLL on the stream, found with its labels."""

    temperature: float
    ece: float
    nll: float


class BatchTrace(TypedDict):
    """One batch of a stream: its images, right answers, mean confidence, and the estimate after it."""

    images: int
    correct: int
    confidence: float
    estimate: EstimatedAccuracy | None


class SegmentScores(TypedDict):
    """The scores of one segment of a stream."""

    name: str
    images: int
    scores: CellScores
    reliability: ReliabilitySums


class Trace(TypedDict):
    """A stream over time: each batch, and each named segment of the stream."""

    batches: list[BatchTrace]
    segments: list[SegmentScores]


class BinnedSegment(TypedDict):
    """A named stretch of a stream, and its number of bins."""

    name: str
    bins: int


class Bins(TypedDict):
    """A stream over time, in bins of consecutive images: a few numbers for each, however long the stream is.

    Attributes:
        images: the images of a class in each bin.
        correct: the right answers.
        confidence: the mean confidence.
        nll: the mean negative log-likelihood, in nats; results of older versions lack it.
        estimate: the accuracy estimated without labels, for tempering "rehearsed"; None before the first.
        segments: the stretches that the bins divide, in order; a bin lies in one of them.
    """

    images: list[int]
    correct: list[int]
    confidence: list[float]
    nll: NotRequired[list[float]]
    estimate: NotRequired[list[float | None]]
    segments: list[BinnedSegment]


class Provenance(TypedDict):
    """The versions and the device that made a result, and the seconds that it took."""

    equipoise: str
    torch: str
    device: str
    seconds: float


class CellResult(TypedDict):
    """A cell and its result: scores, or an error and a traceback if it failed.

    Attributes:
        images: the number of images of the stream that are of a class: the scores are of these.
        no_class: the number of those that are of none, where there are any.
        described: the stream in a sentence, for streams with options or of several domains.
        classes: the number of classes that occur in the stream.
        left_out: the files of the stream and of the training images that could not be read and were left out
            (`--skip-bad-files`).
        oracle: the scores at the best temperature, for tempering "none".
        estimate: of the accuracy, for tempering "rehearsed" and protocol "online".
        trace: the stream over time, batch by batch, for recipes with `trace: batches`.
        bins: the stream over time in bins, for recipes with `trace: bins`.
    """

    key: str
    status: Literal["ok", "failed"]
    cell: Cell
    images: int
    classes: int
    left_out: int
    scores: CellScores | None
    reliability: ReliabilitySums | None
    oracle: NotRequired[OracleScores]
    estimate: NotRequired[StreamEstimate]
    trace: NotRequired[Trace]
    bins: NotRequired[Bins]
    no_class: NotRequired[int]
    described: NotRequired[str]
    error: str | None
    traceback: str | None
    made: Provenance


class StreamSummary(ModelOnStream):
    """Logit norms and temperatures of the source model on a stream, before any adaptation.

    `norms` and `taus` are quantiles of ‖z‖₂ and of tau at `levels`; `tau_counts` a histogram of tau between
    `tau_edges` (one more than counts, ends open). `h0`, `kappa` and `fixed_tau` (the one temperature with the
    least ECE on the source training images) are the model's.
    """

    key: str
    t_min: float
    t_max: float
    h0: float
    kappa: float
    fixed_tau: float
    images: int
    levels: list[float]
    norms: list[float]
    norm_mean: float
    norm_std: float
    taus: list[float]
    tau_mean: float
    tau_std: float
    tau_edges: list[float]
    tau_counts: list[int]
