"""The suite finds methods that break the contract, and says in words what is wrong."""

import pytest
import torch

import equipoise as eq
from equipoise.core.method import Method
from equipoise.errors import ConformanceError
from equipoise.testing.models import SMALL_MODELS, drifted, make
from equipoise.testing.subject import Subject, difference_of, expect_same_state, part_in_words
from equipoise.testing.suite import NOT_CAPTURED, PROMISES, Finding, check_method
from tests.testing import broken


def findings(method: type[Method]) -> list[Finding]:
    eq.register(method)
    if method is broken.NotReset:
        broken.NotReset.kept.clear()
    return check_method(method.name)


def kept(method: type[Method], name: str, kind: str = "batch_norm") -> None:
    """Check one promise of a method; raises if it is broken."""
    eq.register(method)
    broken.NotReset.kept.clear()
    (promise,) = (promise for promise in PROMISES if promise.name == name)
    promise.keep(Subject(method.name, {}, kind))


def test_a_method_that_keeps_the_contract_passes() -> None:
    seen: list[tuple[int, int]] = []
    eq.register(broken.Centred)
    found = check_method("centred", progress=lambda done, total: seen.append((done, total)))
    assert {(finding.outcome, finding.message) for finding in found} == {("passed", "")}
    total = len(PROMISES) * len(SMALL_MODELS)
    assert seen == [(done + 1, total) for done in range(total)]


BROKEN = [
    (
        broken.NotReset,
        "reset_is_exact",
        r"after reset\(\), batch 1 of the stream is answered otherwise than the first time: does the method "
        r"keep something that is not in `Update.memory`.* \(largest difference ",
    ),
    (
        broken.NotReset,
        "random_draws_repeat",
        "two adapters with the same options and seed differ in the answer to batch 1 of the stream",
    ),
    (
        broken.GlobalRandom,
        "leaves_the_global_random_state",
        r"draws from torch's global random generator .*draw with `context.rand`",
    ),
    (
        broken.GlobalRandom,
        "random_draws_repeat",
        "two adapters with the same options and seed differ in the answer to batch 1 of the stream",
    ),
    (
        broken.InPlace,
        "writes_no_memory_in_place",
        r"the step wrote into memory 'mean' in place \(largest difference .*\): return the new value in "
        "`Update.memory`",
    ),
    (
        broken.Undeclared,
        "changes_declared_parameters_only",
        "the step changed the parameter '0.weight', which is not among those that `learns` declares",
    ),
    (broken.Undeclared, "reset_is_exact", r"reset\(\) left '0.weight' of the model \(largest .*\) changed"),
    (
        broken.NanRow,
        "keeps_no_overflow",
        r"a sample of .*, for which the model's answer is not finite, stays in memory 'mean': return a "
        r"`Check` .* \(5 of 5 values are not finite\)",
    ),
    (
        broken.WrongShape,
        "answers_are_finite_logits",
        r"adapter\(x\): expected logits of shape \(8, 5\), got shape \(8, 4\)",
    ),
    (
        broken.LearnsInPredict,
        "predict_learns_nothing",
        r"predict\(\) changed '0.weight' of the model .*: `answer` may not learn",
    ),
    (
        broken.OtherOnDevice,
        "flags_decide_as_the_host_does",
        r"where the host may not read \(`context.host_looks` is false\), the step answers otherwise \(",
    ),
    (broken.Reading, "the_host_reads_no_tensor", r"the host reads a tensor: float\(\), int\(\), bool\(\)"),
]


@pytest.mark.parametrize(
    ("method", "promise", "message"), BROKEN, ids=lambda value: getattr(value, "name", None)
)
def test_a_broken_promise_is_found_and_said_in_words(
    method: type[Method], promise: str, message: str
) -> None:
    with pytest.raises(ConformanceError, match=message) as caught:
        # The answers of the other models stay finite.
        kept(method, promise, "layer_norm" if method is broken.NanRow else "batch_norm")
    assert isinstance(caught.value, eq.EquipoiseError)
    assert isinstance(caught.value, AssertionError)
    kept(broken.Centred, promise)  # the same without the defect


def test_reading_a_tensor_is_a_remark_with_the_line() -> None:
    found = findings(broken.Reading)
    assert {finding.outcome for finding in found} == {"passed", "remark"}
    remarks = [finding for finding in found if finding.outcome == "remark"]
    assert {finding.promise.name for finding in remarks} == {"the_host_reads_no_tensor"}
    assert all(finding.message.startswith(NOT_CAPTURED) for finding in remarks)
    assert all("(broken.py, line " in finding.message for finding in remarks)


def test_an_error_of_the_method_is_a_failure_with_the_line() -> None:
    found = findings(broken.Raising)
    assert {finding.outcome for finding in found} >= {"failed"}
    failure = next(finding for finding in found if finding.promise.name == "answers_are_finite_logits")
    assert failure.message.startswith("it raised KeyError: 'means' (broken.py, line ")


def test_a_model_that_is_refused_is_not_possible() -> None:
    found = findings(broken.Sometimes)
    refused = {finding.kind for finding in found if finding.outcome == "not possible"}
    assert refused == {"layer_norm", "group_norm", "norm_free"}
    reasons = {finding.message for finding in found if finding.outcome == "not possible"}
    assert reasons == {"expected running statistics, got none"}
    assert not [finding for finding in found if finding.outcome == "failed"]


def test_a_method_that_refuses_every_model_fails() -> None:
    found = findings(broken.Nowhere)
    failed = [finding for finding in found if finding.outcome == "failed"]
    assert [finding.kind for finding in failed] == list(SMALL_MODELS)
    assert {finding.promise.name for finding in failed} == {"adapts_the_model"}
    expected = "the method adapts none of the small models; this one is refused: expected a transformer"
    assert {finding.message for finding in failed} == {expected}


def test_options_reach_the_method() -> None:
    found = check_method("tent", {"learning_rate": -1.0})
    assert {finding.message for finding in found if finding.outcome == "failed"} == {
        "the method adapts none of the small models; this one is refused: "
        "expected learning_rate >= 0, got -1.0"
    }


def test_the_suite_leaves_the_global_random_state() -> None:
    before = torch.get_rng_state()
    kept(broken.GlobalRandom, "works_under_autocast")
    make("batch_norm")
    eq.create("source", make()[0])(drifted(2))
    kept(broken.Centred, "random_draws_repeat")
    kept(broken.Centred, "leaves_the_global_random_state")
    assert not torch.equal(before, torch.get_rng_state())  # by the first line alone


def test_parts_of_a_state_in_words() -> None:
    assert part_in_words("mine.memory.teacher.1.weight") == "memory 'teacher.1.weight'"
    assert part_in_words("mine.model.1.weight") == "'1.weight' of the model"
    assert part_in_words("student.1.weight") == "'1.weight' of the model"
    assert part_in_words("mine.counts.full") == "counter 'full'"
    assert part_in_words("mine.random") == "the state of the random generator"
    assert part_in_words("mine.temperature.sum") == "'sum' of the temper"


def test_differences_in_words() -> None:
    zeros = torch.zeros(2)
    assert difference_of(zeros, torch.zeros(2)) == ""
    assert difference_of(zeros, torch.zeros(3)) == "expected shape (2,), got (3,)"
    assert difference_of(zeros, zeros.double()) == "expected torch.float32, got torch.float64"
    assert difference_of(zeros, torch.tensor([0.0, 0.25])) == "largest difference 0.25"
    assert difference_of(zeros, torch.tensor([0.0, torch.nan])) == "1 of 2 values are not finite"
    assert difference_of(zeros, torch.tensor([0.0, 1e-7]), tolerance=1e-6) == ""
    assert difference_of(torch.tensor([1, 2]), torch.tensor([1, 3])) == "1 of 2 values differ"


def test_a_state_that_differs_names_three_parts_and_counts_the_others() -> None:
    left = {f"mine.memory.{name}": torch.zeros(1) for name in "abcde"}
    right = {name: tensor + 1 for name, tensor in left.items()}
    message = r"^x left memory 'a' \(largest difference 1\), memory 'b' .*, memory 'c' .* and 2 more behind$"
    with pytest.raises(ConformanceError, match=message):
        expect_same_state(left, right, "x left {} behind")
    with pytest.raises(ConformanceError, match=r"memory 'e' \(in one of the two only\)"):
        expect_same_state(left, {name: left[name] for name in list(left)[:4]}, "{}")
