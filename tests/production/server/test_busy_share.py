"""The share of busy time, against the average written out."""

import math

import pytest

from equipoise.production.server.learner import SPAN, BusyShare


def test_the_share_is_an_exponential_average_of_work_over_time() -> None:
    share, expected = BusyShare(), 0.0
    for waited, worked in [(0.1, 0.3), (0.0, 0.5), (2.0, 0.1), (0.0, 0.0)]:
        share.add(waited, worked)
        passed = waited + worked
        if passed:
            kept = math.exp(-passed / SPAN)
            expected = kept * expected + (1 - kept) * worked / passed
        assert share.value == pytest.approx(expected)


def test_a_thread_that_only_works_comes_to_one_and_one_that_waits_to_zero() -> None:
    share = BusyShare()
    for _ in range(100):
        share.add(0.0, 0.1)
    assert share.value > 0.99
    share.add(20.0, 0.0)
    assert share.value < 0.01
