"""Methods that take a step a batch, each against its formula, which is in the file of the method's tests."""

from functools import partial
from typing import Any

import pytest

import equipoise as eq
from tests.methods.test_deyo import Shuffling
from tests.methods.test_eata import Anchored, measured
from tests.methods.test_eta import Selecting
from tests.methods.test_objectives import Come, SelectedCome
from tests.methods.test_poem import Betting, less_contrast
from tests.methods.test_pseudo_label import PseudoLabels, Unsurer
from tests.methods.test_sar import Sharp
from tests.methods.test_shot_im import ENCODER, Informed, Labelled
from tests.methods.test_tent import Tent
from tests.support import byhand as by
from tests.support.models import step_of

SGD, ADAM, FAST = {"optimizer": "sgd"}, {"optimizer": "adam"}, {"learning_rate": 0.05}
BOTH = [{**SGD, **FAST}, {**ADAM, **FAST}]
SELECTED = {"margin": 0.6, "epsilon": 0.8}
SHUFFLED = {"margin": 0.8, "min_drop": 0.1}
STEPS: list[tuple[str, Any, dict[str, Any], list[dict[str, Any]]]] = [
    ("tent", Tent, {}, [SGD, ADAM, *BOTH]),
    ("tent", Come, {"objective": "come"}, [FAST]),
    ("pseudo_label", PseudoLabels, {}, BOTH),
    ("pseudo_label", Unsurer, {"confidence": 0.6}, BOTH),
    ("shot_im", Informed, {}, [SGD, *BOTH]),
    ("shot_im", Labelled, {"pseudo_weight": 0.3}, BOTH),
    ("eta", Selecting, SELECTED, [{}, ADAM, FAST]),
    ("eta", SelectedCome, {"objective": "come", "margin": 0.6, "epsilon": 2.0}, [FAST]),
    ("eata", Anchored, SELECTED, [{"fisher_alpha": 3.0, **FAST}, {"fisher_alpha": 2000.0}]),
    ("eata", Anchored, SELECTED, [{"fisher_alpha": 50.0, **ADAM, **FAST}]),
    ("sar", Sharp, {"margin": 0.6}, [{}, ADAM, {"learning_rate": 0.02}]),
    ("poem", Betting, {"margin": 0.7}, [{}, ADAM, {"learning_rate": 0.02}]),
    ("deyo", Shuffling, SHUFFLED, [{}, ADAM]),
    ("deyo", partial(Shuffling, seed=5), SHUFFLED, [{"seed": 5, **FAST}]),
]
ROUNDING = {"shot_im": 1e-6, "eata": 1e-6, "poem": 1e-7}
"""Of single precision: the Fisher diagonal and quantiles of entropies are kept in it."""

SOURCE: dict[str, Any] = {"eata": measured, "poem": less_contrast}
EVERYTHING = ("tent", "shot_im", "poem")
"""Methods that need not leave a sample out of these batches."""


@pytest.mark.parametrize("kind", by.MODELS)
@pytest.mark.parametrize(
    ("method", "formula", "options"), [(n, f, {**all_, **own}) for n, f, all_, each in STEPS for own in each]
)
def test_batches_are_exact(kind: str, method: str, formula: Any, options: dict[str, Any]) -> None:
    if method == "deyo" and kind != "BatchNorm2d":  # the other models take no images
        return
    model, rtol, used = by.MODELS[kind](), ROUNDING.get(method, 1e-9), []
    source = SOURCE[method](model) if method in SOURCE else None
    adapter = eq.create(method, model, source, **options)
    rate = adapter.options["learning_rate"]  # the defaults are in test_tables.py
    given = [ENCODER] if method == "shot_im" else []
    expected: by.Learner = formula(model, adapter.options["optimizer"], rate, *given)
    if isinstance(expected, Anchored):
        expected.alpha = options["fisher_alpha"]
    for x in by.stream(5, rows=9, like=model):
        assert by.close(adapter(x), expected.step(x), rtol)
        step = step_of(adapter)
        assert (step.used, step.updated) == (expected.used, expected.used > 0)
        if expected.used:
            assert step.loss == pytest.approx(expected.lost, rel=max(1e-6, 100 * rtol))
        for name, tensor in expected.memory.items():
            assert by.close(adapter.memory[name].double(), tensor, max(rtol, 1e-6 * (method == "poem"))), name
        used.append(step.used)
    by.assert_alike(adapter, expected, rtol)
    assert sum(used) > 0
    assert sum(used) < 45 or method in EVERYTHING
    if isinstance(expected, Anchored):
        assert expected.penalties[0] == 0 < min(expected.penalties[1:])
    if isinstance(expected, Betting):
        assert abs(expected.epsilon) > 0.2
    (x,) = by.stream(1, rows=5, like=model, seed=4)
    assert by.close(adapter.predict(x), expected.predict(x), rtol)
    assert not by.close(expected.weights["norm.weight"], expected.source["norm.weight"], 1e-6)
