"""The contract every registered method keeps, on models with batch, layer, group and no normalisation."""

import pytest

import equipoise as eq
from equipoise.testing.subject import Subject
from equipoise.testing.suite import PROMISES, Promise
from tests.support.cases import CASES, IN_SHORT_OR_SLOW
from tests.support.mean_teacher import MeanTeacher


@pytest.mark.parametrize(("case", "kind"), IN_SHORT_OR_SLOW)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_promise(promise: Promise, case: str, kind: str) -> None:
    method, options = CASES[case]
    if method == MeanTeacher.name:
        eq.register(MeanTeacher)  # only for this test: conftest.py takes it out again
    promise.keep(Subject(method, options, kind))
