"""The contract every registered method keeps, on models with batch, layer, group and no normalisation."""

from collections.abc import Callable

import pytest

import equipoise as eq
from equipoise.testing.promises import flags_decide_as_the_host_does, the_host_reads_no_tensor
from equipoise.testing.subject import Subject, captures
from equipoise.testing.suite import PROMISES, Promise
from tests.support.cases import CASES, FULL_SOON, IN_SHORT_OR_SLOW
from tests.support.mean_teacher import MeanTeacher
from tests.support.models import drifted


@pytest.mark.parametrize(("case", "kind"), IN_SHORT_OR_SLOW)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_promise(promise: Promise, case: str, kind: str) -> None:
    method, options = CASES[case]
    if method == MeanTeacher.name:
        eq.register(MeanTeacher)  # only for this test: conftest.py takes it out again
    promise.keep(Subject(method, options, kind))


@pytest.mark.parametrize("method", FULL_SOON)
@pytest.mark.parametrize("kind", ["batch_norm", "layer_norm", "group_norm", "instance_norm"])
@pytest.mark.parametrize("keep", [flags_decide_as_the_host_does, the_host_reads_no_tensor])
def test_a_step_is_captured_once_the_memory_is_full(
    keep: Callable[[Subject], None], method: str, kind: str
) -> None:
    subject = Subject(method, FULL_SOON[method], kind)
    adapter = subject.adapter()
    for seed in range(3):
        adapter(drifted(8, seed))
    assert captures(adapter, drifted(8))
    keep(subject)
