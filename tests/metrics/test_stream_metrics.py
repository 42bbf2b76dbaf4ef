"""The metrics of a stream: one shot however it is split, merged, saved or gathered."""

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import Metric, MetricCollection

import equipoise as eq
from equipoise import metrics
from equipoise.errors import OptionError
from equipoise.metrics import (
    Accuracy,
    BrierScore,
    Entropy,
    ExpectedCalibrationError,
    NegativeLogLikelihood,
    Summary,
)
from tests.metrics import reference
from tests.metrics.reference import calibrated_stream, gather_twice, random_logits

CLASSES = 4
MAKERS: dict[str, Callable[..., Metric]] = {
    "Accuracy": metrics.Accuracy,
    "ExpectedCalibrationError": metrics.ExpectedCalibrationError,
    "MaximumCalibrationError": metrics.MaximumCalibrationError,
    "AdaptiveCalibrationError": metrics.AdaptiveCalibrationError,
    "AreaUnderRiskCoverage": metrics.AreaUnderRiskCoverage,
    "ClasswiseCalibrationError": lambda **more: metrics.ClasswiseCalibrationError(
        num_classes=CLASSES, **more
    ),
    "NegativeLogLikelihood": metrics.NegativeLogLikelihood,
    "BrierScore": metrics.BrierScore,
    "Entropy": metrics.Entropy,
    "Reliability": metrics.Reliability,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Accuracy": metrics.accuracy,
    "ExpectedCalibrationError": metrics.expected_calibration_error,
    "MaximumCalibrationError": metrics.maximum_calibration_error,
    "AdaptiveCalibrationError": metrics.adaptive_calibration_error,
    "AreaUnderRiskCoverage": metrics.area_under_risk_coverage,
    "ClasswiseCalibrationError": metrics.classwise_calibration_error,
    "NegativeLogLikelihood": metrics.negative_log_likelihood,
    "BrierScore": metrics.brier_score,
    "Entropy": metrics.entropy,
    "Reliability": metrics.reliability_bins,
}
ON_CELLS: dict[str, Callable[..., float]] = {
    "AdaptiveCalibrationError": partial(reference.adaptive_error, cells=4096),
    "AreaUnderRiskCoverage": partial(reference.area_under_risk_coverage, cells=True),
}
every_metric = pytest.mark.parametrize("name", MAKERS)
quick = settings(deadline=None, derandomize=True, max_examples=25)


def arguments(name: str, logits: Tensor, target: Tensor) -> dict[str, Tensor]:
    return {"logits": logits} if name == "Entropy" else {"logits": logits, "target": target}


def one_shot(name: str, logits: Tensor, target: Tensor) -> Any:
    if name in ON_CELLS and len(target):
        # The class ranks on cells, so its own loop is what it must agree with.
        probs, labels = reference.as_numpy(logits.softmax(dim=1)), reference.labels_of(target)
        return torch.tensor(ON_CELLS[name](probs, labels), dtype=torch.float64)
    return FUNCTIONS[name](**arguments(name, logits, target))


def streamed(name: str, logits: Tensor, target: Tensor, sizes: list[int]) -> Metric:
    metric = MAKERS[name]()
    for part, labels in zip(logits.split(sizes), target.split(sizes), strict=True):
        metric.update(**arguments(name, part, labels))
    return metric


def assert_same(got: Any, expected: Any) -> None:
    if isinstance(expected, metrics.ReliabilityBins):
        assert isinstance(got, metrics.ReliabilityBins)
        got, expected = vars(got), vars(expected)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12, equal_nan=True)


def saved_and_loaded(metric: Metric) -> Metric:
    file = io.BytesIO()
    torch.save(metric, file)
    file.seek(0)
    loaded: Metric = torch.load(file, weights_only=False)
    return loaded


@st.composite
def splittings(draw: st.DrawFn) -> tuple[Tensor, Tensor, list[int]]:
    sizes = draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))
    return *random_logits(draw(st.integers(0, 2**31)), sum(sizes), CLASSES, ties=True), sizes


@every_metric
def test_a_stream_is_one_shot_however_it_is_split(name: str) -> None:
    @quick
    @given(splittings())
    def check(drawn: tuple[Tensor, Tensor, list[int]]) -> None:
        logits, target, sizes = drawn
        assert_same(streamed(name, logits, target, sizes).compute(), one_shot(name, logits, target))

    check()


@every_metric
def test_merging_two_is_one_over_both(name: str) -> None:
    @quick
    @given(splittings(), st.integers(0, 6))
    def check(drawn: tuple[Tensor, Tensor, list[int]], cut: int) -> None:
        logits, target, sizes = drawn
        cut = sum(sizes[:cut])
        first = streamed(name, logits[:cut], target[:cut], [cut])
        first.compute()  # what was computed before must not be answered again after the merge
        first.merge_state(streamed(name, logits[cut:], target[cut:], [len(target) - cut]))
        assert_same(first.compute(), one_shot(name, logits, target))

    check()


@every_metric
def test_merging_into_a_fresh_one(name: str) -> None:
    logits, target = random_logits(0, 20, CLASSES, ties=True)
    filled = streamed(name, logits, target, [20])
    for incoming in (filled, filled.metric_state):
        fresh = MAKERS[name]()
        fresh.merge_state(incoming)
        assert_same(fresh.compute(), filled.compute())


MISFITS: list[tuple[Metric, Any]] = [
    (metrics.ExpectedCalibrationError(bins=15), metrics.ExpectedCalibrationError(bins=1)),
    (metrics.ExpectedCalibrationError(bins=15), metrics.ExpectedCalibrationError(bins=1).metric_state),
    (metrics.ExpectedCalibrationError(), metrics.MaximumCalibrationError()),
    (metrics.Accuracy(), metrics.NegativeLogLikelihood()),
    (metrics.Accuracy(), metrics.NegativeLogLikelihood().metric_state),
    # As many sums, but of other classes and bins.
    (
        metrics.ClasswiseCalibrationError(num_classes=4, bins=10),
        metrics.ClasswiseCalibrationError(num_classes=8, bins=5),
    ),
    (metrics.Accuracy(), 3),
]


@pytest.mark.parametrize(("metric", "incoming"), MISFITS)
def test_refuses_to_merge_what_does_not_fit(metric: Metric, incoming: Any) -> None:
    logits, target = random_logits(0, 20, CLASSES)
    metric.update(logits=logits, target=target)
    before = copy.deepcopy(metric.metric_state)
    with pytest.raises(OptionError, match=f"expected a {type(metric).__name__} or its metric_state"):
        metric.merge_state(incoming)
    torch.testing.assert_close(metric.metric_state, before, rtol=0, atol=0)


def test_adaptive_errors_of_other_bins_merge() -> None:
    # Its sums are of the grid, whatever the bins: the answer is the one of its own bins.
    logits, target = random_logits(0, 20, CLASSES)
    ours, theirs, both = (metrics.AdaptiveCalibrationError(bins=bins) for bins in (5, 15, 5))
    ours.update(logits=logits[:10], target=target[:10])
    theirs.update(logits=logits[10:], target=target[10:])
    both.update(logits=logits, target=target)
    ours.merge_state(theirs)
    assert_same(ours.compute(), both.compute())


@pytest.mark.parametrize("cached", [False, True])
def test_cache_may_be_chosen_and_does_not_outlive_a_merge(cached: bool) -> None:
    metric, other = (metrics.Accuracy(compute_with_cache=cached) for _ in range(2))
    metric.update(probs=torch.eye(2), target=torch.tensor([0, 1]))
    assert float(metric.compute()) == 1
    other.update(probs=torch.eye(2), target=torch.tensor([1, 0]))
    metric.merge_state(other)
    assert float(metric.compute()) == 0.5


def test_adaptive_stream_is_close_to_exact_ranks() -> None:
    logits, target, _ = calibrated_stream(0, 20_000, sharpness=2)
    exact = metrics.adaptive_calibration_error(logits=logits, target=target)
    metric = streamed("AdaptiveCalibrationError", logits, target, [5_000] * 4)
    assert float(metric.compute()) == pytest.approx(float(exact), abs=2e-4)


def test_mean_of_batch_errors_is_not_the_error_of_the_stream() -> None:
    logits, target, _ = calibrated_stream(0, 50_000)
    metric = metrics.ExpectedCalibrationError()
    by_batch = [
        metric(logits=part, target=labels)
        for part, labels in zip(logits.split(64), target.split(64), strict=True)
    ]
    assert float(metric.compute()) < 0.01
    assert float(torch.stack(by_batch).mean()) > 0.1


@every_metric
def test_forward_gives_the_batch_and_keeps_the_stream(name: str) -> None:
    logits, target = random_logits(1, 60, CLASSES, ties=True)
    metric = MAKERS[name]()
    for part, labels in zip(logits.split(20), target.split(20), strict=True):
        assert_same(metric(**arguments(name, part, labels)), one_shot(name, part, labels))
    assert_same(metric.compute(), one_shot(name, logits, target))


@every_metric
def test_a_refused_batch_costs_nothing(name: str) -> None:
    logits, target = random_logits(2, 20, CLASSES, ties=True)
    metric = streamed(name, logits, target, [20])
    before = metric.compute()
    for add in (metric.update, metric):
        with pytest.raises(OptionError, match="finite maximum, got 20 rows"):
            add(**arguments(name, torch.full_like(logits, torch.inf), target))
        assert_same(metric.compute(), before)


@every_metric
def test_rows_that_an_adapter_set_aside_are_left_out_and_counted(name: str) -> None:
    logits, target = random_logits(10, 40, CLASSES, ties=True)
    answers = logits.clone()
    answers[3:25] = torch.nan  # some of one batch and all of another
    kept = ~answers.isnan().all(dim=1)
    metric: Any = streamed(name, answers, target, [20, 5, 15])
    assert metric.skipped == 22
    assert_same(metric.compute(), one_shot(name, logits[kept], target[kept]))
    other: Any = MAKERS[name]()
    assert other.skipped == 0
    other(**arguments(name, answers[:5], target[:5]))
    for incoming, count in ((metric, 24), (metric.metric_state, 46)):
        other.merge_state(incoming)
        assert other.skipped == count
    assert saved_and_loaded(metric).skipped == copy.deepcopy(metric).skipped == 22
    metric.reset()
    assert metric.skipped == 0


def test_skipped_rows_of_processes_add_up() -> None:
    metric = metrics.Accuracy(dist_sync_fn=gather_twice, distributed_available_fn=lambda: True)
    metric.update(logits=torch.full((3, 2), torch.nan), target=torch.zeros(3, dtype=torch.long))
    assert metric.skipped == 6 and bool(metric.compute().isnan())


def test_skipped_rows_of_a_collection() -> None:
    collection = MetricCollection({name: make() for name, make in MAKERS.items()})
    logits, target = random_logits(11, 20, CLASSES)
    logits[:4] = torch.nan
    for _ in range(2):
        collection.update(logits=logits, target=target)
    assert {name: metric.skipped for name, metric in collection.items()} == dict.fromkeys(MAKERS, 8)


def test_the_loop_of_the_readme_goes_past_a_bad_sample() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, CLASSES))
    adapter, draw = eq.create("tent", model), torch.Generator().manual_seed(0)
    ece = metrics.ExpectedCalibrationError()
    for bad in (0, 2, 8):
        x, y = torch.randn(8, 4, generator=draw), torch.arange(8) % CLASSES
        x[:bad] = torch.inf
        ece.update(logits=adapter(x), target=y)
    assert ece.skipped == 10 and bool(ece.compute().isfinite())


@every_metric
def test_state_is_of_fixed_size_and_float64(name: str) -> None:
    logits, target = random_logits(4, 40, CLASSES, ties=True)
    metric = MAKERS[name]()
    shapes = {key: value.shape for key, value in metric.metric_state.items() if isinstance(value, Tensor)}
    model = torch.nn.ModuleList([metric])
    for cast in (model.float, model.half, model.bfloat16, lambda: model.to(torch.bfloat16), metric.half):
        cast()
        metric.update(**arguments(name, logits.float(), target))
    metric.set_dtype(torch.float16)
    for key, value in metric.metric_state.items():
        assert isinstance(value, Tensor) and value.dtype == torch.float64 and value.shape == shapes[key]
    metric.reset()
    metric.update(**arguments(name, logits, target))
    assert_same(metric.compute(), one_shot(name, logits, target))


@every_metric
def test_pickle_and_copy(name: str) -> None:
    logits, target = random_logits(5, 40, CLASSES, ties=True)
    metric = streamed(name, logits[:20], target[:20], [20])
    for twin in (saved_and_loaded(metric), copy.deepcopy(metric), metric.clone()):
        twin.update(**arguments(name, logits[20:], target[20:]))
        assert_same(twin.compute(), one_shot(name, logits, target))
    assert_same(metric.compute(), one_shot(name, logits[:20], target[:20]))
    value = metric.compute()
    assert_same(copy.deepcopy(value), value)


@every_metric
def test_nothing_seen_is_nan(name: str) -> None:
    metric = MAKERS[name]()
    with pytest.warns(UserWarning, match="before the ``update`` method"):
        assert_same(metric.compute(), one_shot(name, torch.zeros(0, CLASSES).double(), torch.zeros(0).long()))


@every_metric
def test_holds_no_graph_and_crosses_inference_mode(name: str) -> None:
    logits, target = random_logits(6, 20, CLASSES, ties=True)
    metric = MAKERS[name]()
    with torch.inference_mode():
        metric.update(**arguments(name, logits, target))
    value = metric(**arguments(name, logits.clone().requires_grad_(), target))
    for tensor in vars(value).values() if name == "Reliability" else [value]:
        assert not tensor.requires_grad
    metric.update(**arguments(name, logits.clone().requires_grad_(), target))
    state = next(iter(metric.metric_state.values()))
    assert isinstance(state, Tensor) and not state.requires_grad
    assert_same(metric.compute(), one_shot(name, logits.repeat(3, 1), target.repeat(3)))


@every_metric
def test_processes_add_up(name: str) -> None:
    logits, target = random_logits(7, 20, CLASSES, ties=True)
    metric = MAKERS[name](dist_sync_fn=gather_twice, distributed_available_fn=lambda: True)
    metric.update(**arguments(name, logits, target))
    assert_same(metric.compute(), one_shot(name, logits.repeat(2, 1), target.repeat(2)))
    assert metric.is_differentiable is False and metric.full_state_update is False
    assert metric.higher_is_better is (name == "Accuracy")


def test_collection_of_all() -> None:
    logits, target = random_logits(8, 60, CLASSES, ties=True)
    collection = MetricCollection({name: make() for name, make in MAKERS.items()})
    for part, labels in zip(logits.split(20), target.split(20), strict=True):
        collection.update(logits=part, target=labels)
    for name, value in collection.compute().items():
        assert_same(value, one_shot(name, logits, target))
    groups = sorted(sorted(group) for group in collection.compute_groups.values())
    assert ["ExpectedCalibrationError", "MaximumCalibrationError", "Reliability"] in groups
    assert len(groups) == len(MAKERS) - 2
    batch = collection(logits=logits[:20], target=target[:20])
    for name, value in batch.items():
        assert_same(value, one_shot(name, logits[:20], target[:20]))


def test_collection_does_not_confuse_metrics_that_start_alike() -> None:
    # After a first batch without samples, or of certain right answers, all moments are alike.
    logits, target = random_logits(9, 20, CLASSES, ties=True)
    certain = torch.tensor([[1e4, 0.0, 0.0, 0.0]], dtype=torch.float64)
    for first in (certain[:0], certain):
        labels = torch.zeros(len(first), dtype=torch.long)
        collection = MetricCollection({name: make() for name, make in MAKERS.items()})
        collection.update(logits=first, target=labels)
        collection.update(logits=logits, target=target)
        for name, value in collection.compute().items():
            assert_same(value, one_shot(name, torch.cat([first, logits]), torch.cat([labels, target])))


def test_number_of_classes_must_match() -> None:
    metric = metrics.ClasswiseCalibrationError(num_classes=3)
    with pytest.raises(OptionError, match=r"expected 3 classes \(num_classes\), got 4"):
        metric.update(probs=torch.full((2, 4), 0.25), target=torch.tensor([0, 1]))


def test_reliability_with_one_bin_keeps_its_shape() -> None:
    metric = metrics.Reliability(bins=1)
    metric.update(probs=torch.eye(2), target=torch.tensor([0, 1]))
    assert metric.compute().count.tolist() == [2]


@pytest.mark.parametrize("bins", [1, 15])
@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("given", ["logits", "probs"])
def test_it_says_what_the_five_say(bins: int, classes: int, given: str) -> None:
    draw = torch.Generator().manual_seed(classes)
    summary = Summary(bins=bins)
    labelled = [Accuracy(), ExpectedCalibrationError(bins=bins), NegativeLogLikelihood(), BrierScore()]
    entropy = Entropy()
    for rows in (1, 8, 50):
        logits = 3 * torch.randn(rows, classes, generator=draw)
        scores = {given: logits if given == "logits" else logits.softmax(1)}
        target = torch.randint(0, classes, (rows,), generator=draw)
        summary.update(**scores, target=target)
        for metric in labelled:
            metric.update(**scores, target=target)
        entropy.update(**scores)
    expected = [float(each.compute()) for each in (*labelled, entropy)]
    assert [float(value) for value in summary.compute()] == pytest.approx(expected, rel=1e-12)


def test_it_adds_up_over_processes_and_says_nothing_of_no_sample() -> None:
    whole, first, second = Summary(), Summary(), Summary()
    logits, target = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
    whole.update(logits=logits, target=target)
    first.update(logits=logits[:5], target=target[:5])
    second.update(logits=logits[5:], target=target[5:])
    first.merge_state(second)
    assert all(
        float(a) == pytest.approx(float(b)) for a, b in zip(first.compute(), whole.compute(), strict=True)
    )
    first.reset()
    first.update(logits=logits[:0], target=target[:0])
    assert all(bool(value.isnan()) for value in first.compute())
