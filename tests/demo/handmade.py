"""Small results written by hand, for tests of what is made from results."""

from equipoise.demo.results import (
    AccuracyEstimate,
    DemoResults,
    DemoScores,
    DomainScores,
    MethodResult,
    RehearsalResult,
)
from equipoise.report.figures.reliability import Bins

DOMAINS = ["optical", "mnist", "rendered"]


def reliability(count: list[int], confidence: list[float | None], accuracy: list[float | None]) -> Bins:
    bins = len(count)
    return Bins(
        lower=[index / bins for index in range(bins)],
        upper=[(index + 1) / bins for index in range(bins)],
        count=count,
        confidence=confidence,
        accuracy=accuracy,
    )


def method(
    name: str,
    tempering: str = "none",
    *,
    label: str | None = None,
    options: dict[str, float] | None = None,
    accuracy: float = 0.5,
    ece: float = 0.2,
    entropy: float = 1.5,
    nll: float = 1.8,
) -> MethodResult:
    """A method with the same scores on all three domains: half its answers at 0.5, half at 0.9."""
    scores = DomainScores(
        accuracy=accuracy,
        ece=ece,
        entropy=entropy,
        nll=nll,
        reliability=reliability([0, 10, 10], [None, 0.5, 0.9], [None, accuracy, accuracy]),
    )
    mean = DemoScores(accuracy=accuracy, ece=ece, entropy=entropy, nll=nll)
    return MethodResult(
        method=name,
        name=name,
        label=label or (name if tempering == "none" else f"{name} ({tempering})"),
        tempering=tempering,
        options=options or {},
        mean=mean,
        domains=dict.fromkeys(DOMAINS, scores),
    )


def poise(ece: float = 0.2, mean_ece: float = 0.1, median_ece: float = 0.1) -> list[MethodResult]:
    """Poise's three rows: raw, and its two temperings."""
    return [
        method("poise", label="poise (raw)", ece=ece),
        method("poise", "rehearsed", label="poise", ece=mean_ece, nll=1.5),
        method("poise", "median", ece=median_ece, nll=1.5),
    ]


def rehearsal() -> RehearsalResult:
    """Three estimates: two whose interval contains an accuracy of 0.5, and one unlike the rehearsal."""
    good = AccuracyEstimate(value=0.55, low=0.45, high=0.65, inside=True)
    bad = AccuracyEstimate(value=0.75, low=0.6, high=0.9, inside=False)
    return RehearsalResult(
        method="poise", images=15, streams=45, estimates=dict(zip(DOMAINS, [good, good, bad], strict=True))
    )


def results(*methods: MethodResult) -> DemoResults:
    return DemoResults(
        schema=3,
        equipoise="0.0.0",
        torch="2.0.0",
        threads=2,
        seed=0,
        quick=True,
        protocol="online",
        images_per_domain=20,
        epochs=1,
        seconds=1.0,
        domains=DOMAINS,
        methods=list(methods),
        rehearsal=rehearsal(),
    )
