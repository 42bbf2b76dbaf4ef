"""Small results written by hand, for tests of what is made from results."""

from equipoise.demo.results import DomainScores, MethodResult, Reliability, Results, Scores

DOMAINS = ["optical", "mnist", "rendered"]


def reliability(
    count: list[int], confidence: list[float | None], accuracy: list[float | None]
) -> Reliability:
    bins = len(count)
    return Reliability(
        lower=[index / bins for index in range(bins)],
        upper=[(index + 1) / bins for index in range(bins)],
        count=count,
        confidence=confidence,
        accuracy=accuracy,
    )


def method(
    label: str, *, accuracy: float = 0.5, ece: float = 0.2, entropy: float = 1.5, nll: float = 1.8
) -> MethodResult:
    """A method with the same scores on all three domains: half its answers at 0.5, half at 0.9."""
    scores = DomainScores(
        accuracy=accuracy,
        ece=ece,
        entropy=entropy,
        nll=nll,
        reliability=reliability([0, 10, 10], [None, 0.5, 0.9], [None, accuracy, accuracy]),
    )
    mean = Scores(accuracy=accuracy, ece=ece, entropy=entropy, nll=nll)
    return MethodResult(
        method=label, label=label, options={}, mean=mean, domains=dict.fromkeys(DOMAINS, scores)
    )


def results(*methods: MethodResult) -> Results:
    return Results(
        schema=1,
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
    )
