"""What many methods have alike, as tables: defaults, refusals, forwards, lone samples, seeds, statistics.

What every method promises (reset, saving, bad samples, random numbers, …) is in the conformance suite.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.errors import BatchError, ModelError, OptionError, SourceError, StateError
from tests.support import byhand as by
from tests.support.models import Counting, drifted, make, measured, same, snapshot, step_of

SGD = {"optimizer": "sgd", "learning_rate": 2.5e-4, "momentum": 0.9}
ADAM = {"optimizer": "adam", "learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [
        ("tent", {}, ADAM),
        ("tent", {"optimizer": "sgd"}, SGD),
        ("eta", {}, {**SGD, "steps": 1, "margin": 0.4, "epsilon": None}),
        ("eata", {}, {**SGD, "margin": 0.4, "epsilon": None, "fisher_alpha": 2000.0}),
        ("sar", {}, {**SGD, "margin": 0.4, "rho": 0.05, "reset_below": 0.2, "objective": "entropy"}),
        ("deyo", {}, {**SGD, "margin": 0.5, "min_drop": 0.2}),
        ("poem", {}, {**SGD, "margin": 0.4}),
        ("shot_im", {}, {"optimizer": "sgd", "learning_rate": 1e-3}),
        ("shot_im", {"optimizer": "adam"}, {"learning_rate": 5e-5}),
        ("cotta", {}, {**ADAM, "restore": 0.01, "views": 32}),
        ("cotta", {"optimizer": "sgd"}, {"learning_rate": 0.01, "restore": 0.001, "views": 32}),
        ("cotta", {"restore": 0.0}, {"restore": 0.0}),
        ("rmt", {}, {**ADAM, "contrast": 1.0, "decay": 0.999, "parameters": "all"}),
        ("rmt", {"optimizer": "sgd"}, {"learning_rate": 0.01}),
        ("memo", {}, {"views": 64, "learning_rate": 2.5e-4, "prior": 16.0}),
        ("rdumb", {}, {"base": "eta", "every": 64_000, **SGD, "margin": 0.4, "epsilon": None}),
        ("dec", {}, {"learning_rate": 1e-7}),
        ("dec", {"reading": "released"}, {"learning_rate": 1e-3}),
    ],
)
def test_the_defaults_are_the_authors(method: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    options = eq.create(method, *make(), **given).options
    options = {**options.get("options", {}), **options}  # those of rdumb's base
    assert {name: options[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("pseudo_label", {"confidence": -0.1}, "confidence"),
        ("pseudo_label", {"confidence": 1.1}, "confidence"),
        ("pseudo_label", {"window": 0}, "window"),
        ("norm", {"prior": -1.0}, "prior"),
        ("norm", {"prior": "16"}, "prior"),
        ("norm", {"norm_momentum": 1.1}, "norm_momentum"),
        ("norm", {"window": 0}, "window"),
        ("bn_alpha", {"alpha": -0.1}, "alpha"),
        ("bn_alpha", {"alpha": 1.1}, "alpha"),
        ("bn_alpha", {"norm_momentum": 2.0}, "norm_momentum"),
        *[("t3a", {"supports": bad}, "expected supports") for bad in (0, -1, 1.5, "all", True)],
        ("tent", {"objective": "gini"}, "expected objective as one of entropy, come, got 'gini'"),
        ("poise", {"norm_momentum": 1.5}, "norm_momentum >= 0 and <= 1"),
        ("poise", {"tempering": "mean", "t_min": 3.0, "t_max": 1.0}, "t_min <= t_max"),
        ("dec", {"t_min": 3.0, "t_max": 1.0}, "t_min <= t_max"),
        ("dec", {"t_min": 0.0}, "0 < t_min"),
        ("dec", {"t_min": -1.0}, "0 < t_min"),
        ("dec", {"learning_rate": -1e-3}, "learning_rate >= 0"),
        ("dec", {"learning_rate": math.nan}, "learning_rate >= 0"),
        ("dec", {"norm_momentum": 1.5}, "norm_momentum"),
        ("dec", {"t_min": "1"}, "t_min as a number, got '1'"),
        ("dec", {"t_max": "3"}, "t_max as a number, got '3'"),
        ("dec", {"learning_rate": True}, "learning_rate >= 0, got True"),
        ("dec", {"learning_rate": "1e-3"}, "learning_rate >= 0"),
        ("dec", {"reading": "notebook"}, "reading as one of paper, released"),
        ("dec", {"reading": ["paper"]}, "reading as one of paper, released"),
        ("dec", {"source_copy": "absent"}, "source_copy as one of resident, swapped"),
        *[("dec", {"parameters": bad}, "list of name patterns") for bad in (None, [1], 3, "some", [])],
        ("dec", {"parameters": ["nothing.*"]}, "no parameter matches"),
    ],
)
def test_options_out_of_range(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        eq.create(method, *make(), **options)


@pytest.mark.parametrize(
    ("method", "lacks", "message"),
    [
        ("petta", {"features": {}}, r"petta needs.*features=True\)"),
        ("rmt", {"features": {}}, r"rmt needs.*features=True\)"),
        ("rmt", None, r"rmt needs.*features=True\)"),
        ("foa_shift", {"features": {}}, r"foa_shift needs.*features=True\)"),
        ("poem", {"entropies": torch.zeros(0)}, "poem needs source statistics with the quantiles"),
        ("poem", None, "poem needs source statistics"),
    ],
)
def test_what_the_source_statistics_lack_is_asked_for(
    method: str, lacks: dict[str, Any] | None, message: str
) -> None:
    model, source = make()
    with pytest.raises(SourceError, match=message):
        eq.create(method, model, None if lacks is None else replace(source, **lacks))


@pytest.mark.parametrize("method", ["foa_shift", "t3a"])
def test_a_head_that_is_not_known_yet_cannot_be_detached(method: str) -> None:
    with pytest.raises(StateError, match="answer a batch before"):
        eq.create(method, *make()).detach()


@pytest.mark.parametrize("kind", ["layer_norm", "group_norm", "norm_free"])
@pytest.mark.parametrize("method", ["norm", "bn_alpha", "bn_ema"])
def test_a_model_without_batch_norm_is_sent_to_a_method_that_can(method: str, kind: str) -> None:
    model, source = make(kind)
    with pytest.raises(ModelError, match=rf"{method} needs batch-norm.*\btent\b.*\bt3a\b.*\bpoise\b"):
        eq.create(method, model)
    for able in ("poise", "t3a") if kind == "norm_free" else ("poise", "t3a", "tent"):
        assert eq.create(able, model, source, tempering="none")(drifted(4)).isfinite().all()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("deyo", {"margin": 0.0}),
        ("deyo", {"margin": 2.0}),
        ("cotta", {"confidence": 0.0}),
        ("cotta", {"confidence": 1.0}),
        ("roid", {}),
        ("cmf", {}),
        ("rotta", {"every": 4}),
        ("memo", {"views": 4}),
    ],
)
def test_inputs_that_are_no_images_are_refused_and_change_nothing(
    method: str, options: dict[str, Any]
) -> None:
    """Whether views are needed or not: a captured step makes them in any case."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()
    adapter = eq.create(method, model, **options)
    before = snapshot(adapter)
    with pytest.raises(BatchError, match=rf"{method}: expected images \(N, C, H, W\).*got .*\(4, 6\)"):
        adapter(torch.randn(4, 6))
    assert same(before, snapshot(adapter))


# ---------------------------------------------------------------------- the cost of a batch


@pytest.mark.parametrize(
    ("method", "options", "forwards"),
    [  # forwards for batches of so many samples
        ("bn_ema", {}, [(8, 1)]),
        ("lame", {}, [(8, 1)]),
        ("foa_shift", {}, [(8, 1)]),
        ("roid", {}, [(8, 2)]),
        *[("cotta", {"views": 3, "confidence": sure}, [(8, 3)]) for sure in (0.0, 1.0, None)],
        ("cotta", {"views": 32, "confidence": 1.0}, [(20, 2 + 3)]),  # 12, 12 and 8 views of 20 images
        *[("memo", {"views": views}, [(3, 2 * 3)]) for views in (1, 7)],
        ("rotta", {"every": 8}, [(4, 1), (4, 3), (16, 5)]),
        ("petta", {"every": 8}, [(4, 1), (4, 4), (16, 7)]),
        ("rmt", {}, [(8, 3), (1, 3)]),
        ("rmt", {"steps": 2}, [(8, 5)]),
    ],
)
def test_forwards_of_a_batch(method: str, options: dict[str, Any], forwards: list[tuple[int, int]]) -> None:
    model = Counting(make()[0])
    adapter = eq.create(method, model, measured(model, [drifted(32)]), **options)
    for rows, expected in forwards:
        Counting.forwards = 0
        adapter(drifted(rows))
        assert Counting.forwards == expected


@pytest.mark.parametrize("source_copy", ["resident", "swapped"])
@pytest.mark.parametrize(
    ("method", "tempering", "to_predict"),
    [("dec", "mean", 1), ("dec", "sample", 2), ("poise", "agreement", 1), ("poise", "sample", 2)],
)
def test_two_forwards_to_learn_and_one_to_predict(
    method: str, source_copy: str, tempering: str, to_predict: int
) -> None:
    model = Counting(make()[0])
    source = measured(model, [drifted(32)])
    adapter = eq.create(method, model, source, source_copy=source_copy, tempering=tempering)
    for call, expected in ((adapter, 2), (adapter.predict, to_predict)):
        Counting.forwards = 0
        call(drifted(8))
        assert Counting.forwards == expected


# ---------------------------------------------------------------------- who is learned from

LEARNS_ALL: dict[str, dict[str, Any]] = {
    "tent": {},
    "sar": {"margin": 1.0},
    "deyo": {"margin": 2.0, "min_drop": -1.0},
    "poem": {"margin": 1.5},
    "pseudo_label": {"confidence": 0.0},
    "shot_im": {},
}
"""Options under which every sample is learned from."""


@pytest.mark.parametrize("window", [1, 2, 3, 5])
@pytest.mark.parametrize("method", LEARNS_ALL)
def test_samples_that_come_alone_are_learned_from_in_a_window_on_batch_norm(method: str, window: int) -> None:
    adapter, used = eq.create(method, *make("batch_norm"), window=window, **LEARNS_ALL[method]), []
    for seed in range(2 * window + 1):
        assert adapter(drifted(1, seed)).isfinite().all()
        used.append(step_of(adapter).used)
    whole = 0 if (method, window) == ("shot_im", 1) else window  # a single sample has no diversity
    assert used == [*[0] * (window - 1), whole] * 2 + [0 if window > 1 else whole]


@pytest.mark.parametrize("method", sorted(LEARNS_ALL.keys() - {"shot_im"}))
def test_without_batch_norm_a_sample_is_learned_from_alone_and_equal_ones_together(method: str) -> None:
    adapter = eq.create(method, *make("layer_norm"), **{**LEARNS_ALL[method], "learning_rate": 0.05})
    for rows in (1, 4):
        before = snapshot(adapter)
        adapter(drifted(1).repeat(rows, 1, 1, 1))
        assert (step_of(adapter).used, step_of(adapter).updated) == (rows, True)
        assert not same(before, snapshot(adapter))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("deyo", {"margin": 1.0, "min_drop": 0.0, "learning_rate": 0.5}),
        ("sotta", {"confidence": 0.3, "every": 4, "capacity": 5}),
    ],
)
def test_another_seed_gives_other_answers(method: str, options: dict[str, Any]) -> None:
    answers, states = [], []
    for seed in (1, 1, 2):
        adapter = eq.create(method, make()[0], seed=seed, **options)
        answers.append(torch.cat([adapter(drifted(8, place)) for place in range(6)]))
        states.append({name: t for name, t in snapshot(adapter).items() if "random" not in name})
    assert torch.equal(answers[0], answers[1]) and same(states[0], states[1])
    assert not torch.equal(answers[0], answers[2])
    assert not same(states[0], states[2])


# ---------------------------------------------------------------------- statistics and layers


@pytest.mark.parametrize(
    ("method", "options"), [("sar", {"margin": 2.0}), ("deyo", {"margin": 2.0, "min_drop": -1.0})]
)
def test_a_second_forward_does_not_move_the_running_statistics(method: str, options: dict[str, Any]) -> None:
    model, _ = make()
    adapter, twin = eq.create(method, model, **options), eq.create("tent", model)
    adapter(drifted(8))
    twin(drifted(8))
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(adapter.student.get_buffer(name), twin.student.get_buffer(name))


ON_STATISTICS: list[Any] = [("norm", {}), ("norm", {"prior": 16.0}), ("bn_alpha", {}), ("bn_ema", {})]
"""Methods that adapt the statistics of batch norm alone."""


@pytest.mark.parametrize(("method", "options"), ON_STATISTICS)
def test_no_weight_moves_and_the_record_says_so(method: str, options: dict[str, Any]) -> None:
    model, _ = make("batch_norm")
    adapter = eq.create(method, model, **options)
    adapter(drifted(8))
    assert all(torch.equal(p, model.get_parameter(n)) for n, p in adapter.student.named_parameters())
    assert not any(p.requires_grad for p in adapter.student.parameters())
    step = step_of(adapter)
    assert (step.updated, step.used, step.loss, step.reason) == (False, 0, None, "only the statistics follow")


@pytest.mark.parametrize(
    ("method", "rows"), [("norm", 1), ("norm", 7), ("bn_alpha", 7), ("bn_ema", 7), ("tent", 1), ("tent", 7)]
)
def test_statistics_that_overflow_are_undone_and_are_the_reason(method: str, rows: int) -> None:
    adapter = eq.create(method, by.flat_model().float())
    for x in by.stream(2, rows):
        adapter(x.float())
    before = snapshot(adapter)
    adapter(1e30 * by.stream(1, rows)[0].float())
    assert (step_of(adapter).updated, step_of(adapter).reason) == (False, "non-finite statistics")
    assert same(before, snapshot(adapter))


@pytest.mark.parametrize(("method", "options"), [(n, {}) for n in eq.list_methods()] + ON_STATISTICS[1:2])
def test_the_layers_are_left_as_they_were(method: str, options: dict[str, Any]) -> None:
    model, source = make("batch_norm")
    adapter = eq.create(method, model, source, tempering="none", **options)
    adapter(drifted(8))
    modules = list(adapter.student.modules())
    assert not any(module.training for module in modules)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    norm = adapter.student.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm2d)
    assert (norm.momentum, norm.track_running_stats) == (0.1, True)


@pytest.mark.parametrize("method", ["source", "t3a", "lame", "foa_shift"])
def test_the_network_stays_the_sources(method: str) -> None:
    model, source = make("batch_norm")
    adapter = eq.create(method, model, source, tempering="none")
    for x in (drifted(8), drifted(1)):
        adapter(x)
    assert not adapter.learned
    assert same(dict(adapter.student.state_dict()), dict(model.state_dict()))
