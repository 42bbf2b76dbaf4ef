"""A recommendation as a whole: what is tried, what is chosen, what it costs, what is refused."""

import copy
import doctest
import re
import time
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any, get_args

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.method import Context, Method, Update
from equipoise.errors import OptionError, RehearsalError, UnknownMethodError, UnknownOptionError
from equipoise.recommendation import candidates as listed
from equipoise.recommendation import recommend as module
from equipoise.recommendation.candidates import StreamKind
from equipoise.recommendation.made_up_stream import MadeUpStream, make_up_stream
from equipoise.recommendation.recommend import _easiest_first
from equipoise.recommendation.trial import Budget, Setting, UntriedError
from equipoise.rehearsal.labelled import Labelled, take
from equipoise.rehearsal.shifts import Shifts, chosen_shifts
from equipoise.streams import KindName
from tests.support.rehearsals import held_out, plain_model, rows_of_features, samples, trained

SMALL: dict[str, Any] = {"shifts": 8, "length": 800, "samples": 100, "budget": None, "progress": False}


def recommended(**others: Any) -> eq.Recommendation:
    return eq.recommend(trained(), held_out(), **{**SMALL, **others})


@cache
def two() -> eq.Recommendation:
    """The recommendation of norm and poise."""
    return recommended(methods=["poise", "norm", ("tent", {"learning_rate": 1e-4})])


def rows(found: eq.Recommendation, method: str) -> list[Any]:
    return [row for row in found.table if row["method"] == method]


def stream_shifts(labelled: Labelled) -> Shifts:
    """The first built-in shifts without the one that changes nothing."""
    every = list(chosen_shifts(None, labelled.inputs).items())
    return dict(every[1 : SMALL["shifts"] + 1])


def made_up(kind: StreamKind) -> tuple[MadeUpStream, Labelled]:
    """The stream of `SMALL` again, and its samples."""
    labelled = take(held_out(), SMALL["samples"], 0, progress=False)
    shifts = stream_shifts(labelled)
    sized = {"length": SMALL["length"], "batch_size": 50, "seed": 0}
    return make_up_stream(labelled, shifts, kind, {}, **sized), labelled


def test_the_table_has_the_true_scores_of_the_stream() -> None:
    norm = rows(two(), "norm")[0]
    # Statistics of the batch alone, written out: train mode without gradients, on the same samples.
    stream, _ = made_up("continual")
    model, right, losses = trained().train(), [], []
    with torch.no_grad():
        for part, x in stream.batches(torch.device("cpu")):
            logits, y = model(x), stream.labels[part.places]
            right.append((logits.argmax(1) == y).double())
            losses.append(nn.functional.cross_entropy(logits, y, reduction="none").double())
    assert norm["accuracy"] == pytest.approx(float(torch.cat(right).mean()), abs=0.003)
    assert norm["nll"] == pytest.approx(float(torch.cat(losses).mean()), abs=0.003)
    assert norm["tempering"] == "none"


def test_no_adaptation_is_always_tried_and_gains_are_over_it() -> None:
    found = two()
    source = rows(found, "source")[0]
    assert source["gain"] == 0
    for row in [*rows(found, "norm"), *rows(found, "poise"), *rows(found, "tent")]:
        assert row["gain"] == pytest.approx(row["accuracy"] - source["accuracy"])
        assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]


def test_the_call_makes_the_adapter_of_the_row_that_is_marked() -> None:
    found = two()
    (marked,) = [row for row in found.table if row["recommended"]]
    assert found.method == marked["method"]
    model, source = trained(), found.source
    made: list[eq.Adapter] = []
    code = compile(f"made.append({found.call})", "call", "exec")
    FunctionType(code, {"eq": eq, "model": model, "source": source, "made": made})()
    (called,) = made
    x = samples(50, seed=7)[0]
    assert torch.equal(called(x), found.adapter(model)(x))
    assert called.temper.kind == marked["tempering"]
    assert {name: called.options[name] for name in found.options} == dict(found.options)


def test_a_tempered_row_is_what_the_rehearsed_adapter_answers() -> None:
    """The division of recorded answers, against an adapter that is tempered as it goes."""
    found = recommended(methods=["poise"], stream="correlated")
    (row,) = [row for row in rows(found, "poise") if row["tempering"] == "rehearsed"]
    stream, labelled = made_up("correlated")
    every = chosen_shifts(None, labelled.inputs)
    others = {name: shift for name, shift in every.items() if name not in (*stream.shifts, "none")}
    loader = [(part.inputs, part.labels) for part in labelled.batches(50)]
    own = dict(list(others.items())[:15])
    source = eq.rehearse(trained(), loader, shifts=own, samples=len(labelled), progress=False)
    adapter, right = eq.Poise(trained(), source), []
    for part, x in stream.batches(torch.device("cpu")):
        right.append((adapter(x).argmax(1) == stream.labels[part.places]).double())
    assert row["accuracy"] == pytest.approx(float(torch.cat(right).mean()), abs=0.005)


def test_the_same_seed_gives_the_same_table_and_leaves_model_and_random_numbers_alone() -> None:
    model, state = trained(), torch.random.get_rng_state()
    before = copy.deepcopy(model.state_dict())
    again = eq.recommend(model, held_out(), **SMALL, methods=["t3a"])
    first = recommended(methods=["t3a"])
    drop = {"seconds": 0.0}
    assert [{**row, **drop} for row in again.table] == [{**row, **drop} for row in first.table]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module.training for module in model.modules())


def test_a_method_that_cannot_work_is_in_the_table_with_the_reason() -> None:
    x, y = rows_of_features()
    found = eq.recommend(plain_model(), [(x, y)], **SMALL, methods=["norm", "t3a"])
    (row,) = rows(found, "norm")
    assert "needs batch-normalisation layers" in row["problem"]
    assert row["accuracy"] is None
    assert "norm needs batch-normalisation layers" in str(found)
    assert found.method in ("source", "t3a")


def test_a_method_that_fails_is_a_row_and_no_crash() -> None:
    @eq.register
    @dataclass(frozen=True, kw_only=True)
    class Broken(Method):
        """Fails."""

        name = "broken"

        def step(self, context: Context) -> Update:
            raise ZeroDivisionError("no luck")

    found = recommended(methods=["broken", "norm"])
    assert rows(found, "broken")[0]["problem"] == "ZeroDivisionError: no luck"
    assert not rows(found, "norm")[0]["problem"]


def test_without_time_only_source_and_poise_are_tried() -> None:
    found = recommended(methods=["poise", "norm", "t3a"], budget=0)
    scored = {row["method"] for row in found.table if not row["problem"]}
    assert scored == {"source", "poise"}
    for name in ("norm", "t3a"):
        assert rows(found, name)[0]["problem"].startswith("no time: not tried at all, and 0 s")
    assert {row["tempering"] for row in found.table if not row["problem"]} == {"none"}
    assert found.call.startswith("eq.create(")
    assert "no other method was tried to the end" in found.why


def test_a_budget_says_what_there_is_no_time_for() -> None:
    Budget(None).check(1e9)
    Budget(100).check(5)
    with pytest.raises(UntriedError, match=r"^no time: about 1000 s, and 100 s"):
        Budget(100).check(1000)


def test_no_shift_of_the_stream_is_in_a_rehearsal() -> None:
    found = two()
    tried = {row["shift"] for row in found.shifts}
    rehearsed = [run.shift for one in found.source.rehearsals.values() for run in one.runs]
    assert len(tried) == SMALL["shifts"]
    assert rehearsed
    assert not tried & set(rehearsed)


def test_scores_by_shift_add_up_to_those_of_the_stream() -> None:
    parts, table = pd.DataFrame(list(two().shifts)), two().frame()
    for _, row in table.iterrows():
        own = parts[(parts["method"] == row["method"]) & (parts["tempering"] == row["tempering"])]
        count = own["samples"].sum()
        assert count == SMALL["length"]
        for score in ("accuracy", "nll"):
            assert (own[score] * own["samples"]).sum() / count == pytest.approx(row[score])


def test_seconds_are_not_those_of_a_batch_that_was_slow_for_other_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, slow = [0.0], iter([100.0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def shift(x: Tensor, _draw: torch.Generator) -> Tensor:
        now[0] += next(slow, 1.0)
        return x

    found = recommended(methods=[], shifts={f"shift {place}": shift for place in range(8)})
    assert now[0] >= 100
    assert rows(found, "source")[0]["seconds"] == SMALL["length"] / 50  # a second for each batch


def test_samples_of_no_class_are_not_scored() -> None:
    found = recommended(methods=["t3a"], stream=("noisy", {"share": 0.5}))
    clean = recommended(methods=["t3a"])
    assert "50 %" in found.stream
    assert rows(found, "source")[0]["accuracy"] == pytest.approx(
        rows(clean, "source")[0]["accuracy"], abs=0.06
    )


def test_gradual_streams_have_the_easiest_shift_first() -> None:
    hard = {f"noise {level}": _noise(level) for level in (8, 2, 6, 4, 1, 7, 3)}
    found = recommended(methods=[], stream="gradual", shifts=hard, length=1600)
    assert "grows stronger" in found.stream
    labelled, model = take(held_out(), 200, 0, progress=False), trained()
    source = eq.SourceStatistics.measure(model, held_out(), progress=False)
    stream = make_up_stream(labelled, hard, "continual", {}, length=1400, batch_size=50, seed=0)
    order = list(_easiest_first(Setting(model, source, None, stream)))
    assert order[0] == "noise 1"
    assert order.index("noise 2") < order.index("noise 8")


def _noise(level: float) -> Any:
    return lambda x, draw: x + level * torch.randn(x.shape, generator=draw)


def test_a_model_that_adaptation_cannot_help_is_left_as_it_is() -> None:
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(3))
    y = torch.arange(120) % 3  # labels of chance: nothing helps
    found = eq.recommend(plain_model(), [(x, y)], **SMALL, methods=["t3a"], check_held_out=False)
    assert found.method == "source"
    assert "do not adapt" in found.why


def test_a_shift_of_statistics_is_answered_by_a_method_that_follows_them() -> None:
    found = recommended(methods=["t3a", "norm"], shifts=scaled())
    assert found.method == "norm"
    assert "clearly more accurate than no adaptation" in found.why


@pytest.mark.parametrize(
    ("methods", "why"),
    [
        (["t3a", "norm"], r"norm is clearly .*, at least 0\.\d+\."),
        (
            ["t3a", "norm", "bn_ema"],
            r"norm is clearly .*, at least 0\.\d+; none of 2 other methods has a larger lower end\.",
        ),
        (["poise"], r"poise is the default, and no other method was tried; .*"),
        (["poise", "t3a"], "poise is the default, and the other method is not clearly more accurate; .*"),
        (
            ["poise", "t3a", "bn_alpha"],
            "poise is the default, and none of 2 other methods is clearly more accurate; .*",
        ),
    ],
)
def test_neither_the_recommended_method_nor_no_adaptation_is_counted_among_the_others(
    methods: list[str], why: str
) -> None:
    found = recommended(methods=methods, shifts=scaled())
    assert re.fullmatch(why, found.why)
    assert found.method == ("poise" if "poise" in methods else "norm")
    assert found.method == "norm" or "; over no adaptation it gains 0." in found.why


def scaled() -> dict[str, Any]:
    """Shifts of the statistics, which normalisation undoes."""
    return {f"scale {factor}": _scale(factor) for factor in (0.1, 0.2, 0.3, 3, 5, 8, 12)}


def _scale(factor: float) -> Any:
    return lambda x, _: factor * x + factor


def test_the_example_of_the_documentation_runs() -> None:
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0


def test_text_and_frame_have_every_method() -> None:
    text, frame = str(two()), two().frame()
    assert (
        "\n(intervals: 90 % each, over shifts; wider ones, which hold for all methods at once, decide; "
        in text
    )
    assert isinstance(frame, pd.DataFrame)
    assert len(frame) == len(two().table)
    for part in ("poise", "tent(learning_rate=0.0001)", "gain over source", "ECE", two().call, "→"):
        assert part in text


def test_inputs_and_outputs_are_in_the_call() -> None:
    def first(out: Any) -> Tensor:
        found: Tensor = out[0]
        return found

    class Pair(nn.Module):
        """Returns logits in a tuple."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = trained()

        def forward(self, x: Tensor) -> tuple[Tensor, int]:
            return self.inner(x), 1

    found = eq.recommend(Pair().eval(), held_out(), **SMALL, methods=["norm"], outputs=first)
    assert "outputs=outputs" in found.call
    assert found.adapter(Pair().eval())(samples(50)[0]).shape == (50, 4)


def test_short_lists_have_methods_that_exist_for_every_kind() -> None:
    for kind in listed.SHORT_LISTS:
        found = listed.candidates(None, kind)
        assert [one.name for one in found[:2]] == ["source", "poise"]
        assert 8 <= len(found) <= 9


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"stream": "recorded"}, OptionError, "expected stream as one of shuffled, sorted"),
        ({"stream": ("continual", 3)}, OptionError, "as \\(kind, options\\)"),
        ({"stream": ("continual", {"passes": 3})}, OptionError, "no option 'passes'"),
        ({"methods": "tent"}, OptionError, "list of names"),
        ({"methods": ["nothing"]}, UnknownMethodError, "no method 'nothing'"),
        ({"methods": [("tent", {"rate": 1})]}, UnknownOptionError, "no option rate"),
        ({"methods": [("tent", {"tempering": "mean"})]}, OptionError, "recommend\\(\\) sets it"),
        ({"methods": [3]}, OptionError, "as a name, or as \\(name, options\\)"),
        (
            {"budget": -1},
            OptionError,
            "0 or more, or None for no limit, got -1",
        ),
        (
            {"budget": "5m"},
            OptionError,
            "budget as a number of seconds, 0 or more.*got '5m'",
        ),
        ({"budget": float("inf")}, OptionError, "None for no limit, got inf"),
        ({"shifts": 3}, OptionError, "shifts >= 8"),
        ({"samples": 10}, OptionError, "samples >= 100"),
    ],
)
def test_arguments_are_checked(given: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        recommended(**given)


@pytest.mark.parametrize(
    ("stream", "match"),
    [
        (("continual", {"passes": 3}), "no option 'passes'"),
        (("correlated", {"concentration": -1}), "concentration"),
        (("recurring", {"passes": "many"}), "passes"),
    ],
)
def test_options_of_the_stream_are_checked_before_anything_is_read(stream: Any, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        eq.recommend(trained(), _unread(), **SMALL, stream=stream)


def _unread() -> Any:
    raise AssertionError("held-out data were read")
    yield


def test_inputs_without_built_in_shifts_need_shifts_of_ones_own_in_the_same_call() -> None:
    tokens, model = torch.randint(9, (120, 5)), nn.Sequential(nn.Embedding(9, 4), nn.Flatten())
    for call in (eq.recommend, eq.rehearse):
        with pytest.raises(OptionError, match=rf"pass your own, {call.__name__}\(\.\.\., shifts="):
            call(model, [(tokens, torch.arange(120) % 3)], progress=False)


def test_batches_without_samples_are_left_out() -> None:
    x, y = samples(1)
    found = eq.recommend(trained(), [(x[:0], y[:0]), *held_out()], **SMALL, methods=[])
    expected = recommended(methods=[])
    assert [row["accuracy"] for row in found.table] == [row["accuracy"] for row in expected.table]


def test_kinds_are_those_of_streams_that_need_no_order_in_time() -> None:
    assert set(get_args(StreamKind)) == set(get_args(KindName)) - {"recorded"}


def test_labels_that_the_model_does_not_know_are_refused() -> None:
    x, y = samples(200)
    with pytest.raises(RehearsalError, match="expected labels from 0 to 3"):
        eq.recommend(trained(), [(x, y + 2)], **SMALL)


def test_ctrl_c_says_that_nothing_was_kept() -> None:
    def stopped(_x: Tensor, _draw: torch.Generator) -> Tensor:
        raise KeyboardInterrupt

    shifts = {**{f"scale {factor}": _scale(factor) for factor in range(1, 8)}, "stopped": stopped}
    with pytest.raises(KeyboardInterrupt, match="the recommendation was stopped: nothing was kept"):
        recommended(methods=["norm"], shifts=shifts)
