"""Lines of a run read back: the results that count, and the reasons why others do not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.errors import DataError
from equipoise.research.report.results import Scope, read_results, variants
from tests.research.report.written import Line, folder, line, old, stream_line


def test_lines_failures_and_streams_are_read(tmp_path: Path) -> None:
    failed = line("tent", error="RuntimeError: no")
    streams = json.dumps(stream_line()) + "\n"
    results = read_results(folder(tmp_path, [line(seed=0), line(seed=2, tier=3), failed], streams=streams))
    assert results.frame["seed"].tolist() == [0, 2]
    assert results.frame["tier"].tolist() == [0, 3]
    assert results.frame["shift"].tolist() == ["photo", "photo, tier 3"]
    assert [each["error"] for each in results.failures] == ["RuntimeError: no"]
    assert [each["fixed_tau"] for each in results.streams] == [1.4]
    assert (results.damaged, results.left_aside) == (0, {})


@pytest.mark.parametrize(("part", "found"), [(0.5, (1, 1)), (1.0, (2, 0))])
def test_a_line_cut_off_by_a_kill_is_damaged_and_one_without_its_newline_counts(
    tmp_path: Path, part: float, found: tuple[int, int]
) -> None:
    whole = json.dumps(line(seed=1))
    results = read_results(folder(tmp_path, [line()], tail=whole[: int(part * len(whole))]))
    assert (len(results.frame), results.damaged) == found


def test_lines_that_are_no_results_are_damaged(tmp_path: Path) -> None:
    short = line(seed=3)
    del short["cell"]["order"]
    strange = [
        "[]",
        "null",
        "{}",
        "\x00\x00",
        "[" * 100_000,
        json.dumps(short),
        json.dumps({**line(seed=4), "scores": None}),
        json.dumps({**line(seed=5), "status": "done"}),
        json.dumps({**line(error="x"), "scores": line()["scores"]}),
        json.dumps(line(seed=6, nll=float("nan"))),
        json.dumps(line(seed=7, nll=float("inf"))),
        json.dumps(line(seed=8)).replace("1.5", "1e999"),
        json.dumps(line(seed=True)),
        json.dumps(line(seed=9)).replace("1.5", str(10**400)),
        json.dumps(line(seed=10, ece=1e300)),
        json.dumps({**line(seed=11), "images": 10**400}),
        json.dumps(line(seed=12, reliability={"count": [1] * 15, "confidence": [1.0], "correct": [1]})),
        json.dumps(line(seed=13, reliability={"count": [1], "confidence": [1.0], "correct": [1]})),
        json.dumps(line(seed=14)).replace("9.9", str(10**400)),
    ]
    results = read_results(folder(tmp_path, [line()], tail="\n".join([*strange, "", "  "])))
    assert (len(results.frame), results.damaged) == (1, len(strange))


def test_a_line_that_is_not_utf8_is_damaged_and_unknown_fields_do_no_harm(tmp_path: Path) -> None:
    folder(tmp_path, [line(later=1)])
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(b'{"key": "\xff\xfe"}\n')
    results = read_results(tmp_path)
    assert (len(results.frame), results.damaged) == (1, 1)


def test_damaged_streams_are_counted(tmp_path: Path) -> None:
    bad = [
        stream_line(key="x", h0=None),
        stream_line(key="y", kappa=float("nan")),
        stream_line(key="equal", tau_edges=[1, 1, 1]),
        stream_line(key="falling", tau_edges=[0, 2, 1]),
        stream_line(key="less than none", tau_counts=[-1, 5]),
        stream_line(key="levels", levels=[0.5, 0.1], norms=[9.0, 9.0], taus=[2.0, 2.0]),
        stream_line(key="large", tau_counts=[10**400, 5]),
        stream_line(key="few", levels=[0.1, 0.5]),
        stream_line(key="no norm", kappa=0.0),
    ]
    streams = "\n".join([*map(json.dumps, [stream_line(), *bad]), "{"])
    results = read_results(folder(tmp_path, [line()], streams=streams))
    assert (len(results.streams), results.damaged) == (1, len(bad) + 1)


def test_of_one_key_the_line_written_last_counts(tmp_path: Path) -> None:
    results = read_results(folder(tmp_path / "key", [line(error="first"), line(ece=0.1), line(ece=0.3)]))
    assert results.frame["ece"].tolist() == [0.3]
    assert results.failures == ()
    first, second = line("source", model="first"), line("source", model="second")
    results = read_results(folder(tmp_path / "model", [first, second, first]))
    assert results.frame["model"].tolist() == ["first"]


def test_results_of_an_older_model_or_stream_are_left_aside(tmp_path: Path) -> None:
    lines = [
        line("source", model="old"),
        line("tent", model="old"),
        line("source", model="new"),
        line("source", seed=1, stream="before"),
        line("source", seed=1, stream="after"),
        line("source", seed=2, model="old"),
    ]
    results = read_results(folder(tmp_path, lines))
    kept = list(zip(results.frame["seed"], results.frame["model"], strict=True))
    assert kept == [(0, "new"), (1, "m"), (2, "old")]
    assert results.left_aside == {"of a model or stream that was made again since": 3}


def test_of_one_label_and_tempering_the_newest_code_counts(tmp_path: Path) -> None:
    lines = [
        line("tent", seed=0, code="old"),
        line("tent", seed=1, code="old"),
        line("tent", "mean", seed=0, code="old"),
        line("dec", seed=0, code="old"),
        old(line("eta", seed=0)),
        line("tent", seed=1, code="new"),
        line("eta", seed=1, code="new"),
    ]
    results = read_results(folder(tmp_path, lines))
    kept = list(zip(results.frame["label"], results.frame["tempering"], results.frame["code"], strict=True))
    assert kept == [
        ("tent", "none", "new"),
        ("tent", "mean", "old"),
        ("eta", "none", "new"),
        ("dec", "none", "old"),
    ]
    assert results.left_aside == {"of older code of the method, or of another rehearsal": 3}


def test_failures_that_were_mended_or_superseded_are_left_out(tmp_path: Path) -> None:
    lines = [
        line("tent", model="old", error="superseded"),
        line("eta", code="old", error="done well with newer code"),
        line("source", model="new"),
        line("eta", code="new", model="new"),
        line("dec", model="new", error="of the same model"),
        line("source", seed=1, model="old"),
        line("source", seed=1, model="new", error="newer than the one that went well"),
        line("source", seed=2, error="elsewhere"),
    ]
    results = read_results(folder(tmp_path, lines))
    assert [each["error"] for each in results.failures] == [
        "of the same model",
        "newer than the one that went well",
        "elsewhere",
    ]


def test_settings_are_kept_apart_and_whole_data_sets_come_first(tmp_path: Path) -> None:
    pacs = Scope("pacs", None, 15, None, "shuffled", "official", "efficientnet_b0", "online")
    ordered: list[Line] = [
        {"data": "digits"},
        {},
        {"protocol": "after-pass"},
        {"backbone": "mobilenet_v1"},
        {"order": "sorted"},
        {"input_size": 64},
        {"epochs": 2},
        {"limit": 500, "epochs": 1},
    ]
    results = read_results(folder(tmp_path, [line(**each) for each in reversed(ordered)]))
    assert list(results.by_scope) == [pacs._replace(**each) for each in ordered]
    assert [len(rows) for rows in results.by_scope.values()] == [1] * 8


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: path / "nowhere", "is not a folder"),
        (lambda path: path, "has no results.jsonl"),
        (lambda path: folder(path / "empty", []), "found none (0 lines cannot be read)"),
        (lambda path: folder(path / "bad", [], tail="{\n{"), "found none (2 lines cannot be read)"),
    ],
)
def test_where_there_are_no_results_the_error_says_so(
    tmp_path: Path, make: Callable[[Path], Path], expected: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_results(make(tmp_path))
    assert expected in str(caught.value)


def test_methods_and_temperings_have_their_order(tmp_path: Path) -> None:
    labels = ["mine", "dec-released", "dec", "sotta", "source"]
    lines = [line(label, method=label.split("-")[0]) for label in labels]
    kinds = ("zeta", "fixed", "rehearsed", "agreement", "sample", "median", "mean")
    lines += [line("dec", each) for each in kinds]
    found = variants(read_results(folder(tmp_path, lines)).frame)
    raw = [variant.name for variant in found if variant.tempering == "none"]
    assert raw == ["source", "sotta", "dec", "dec-released", "mine"]
    own = [variant.tempering for variant in found if variant.name == "dec"]
    assert own == ["none", "mean", "median", "sample", "agreement", "rehearsed", "fixed", "zeta"]


def test_a_label_for_several_methods_becomes_several(tmp_path: Path) -> None:
    lines = [
        line("tent", batch_size=16, options={"learning_rate": 0.1, "seed": 5}),
        line("tent", batch_size=64, options={"learning_rate": 0.1, "seed": 6}),
        line("tent", batch_size=64, seed=1, options={"learning_rate": 0.1, "steps": 2, "seed": 7}),
        line("eta", options={"seed": 0}),
        line("eta", seed=1, options={"seed": 1}),
    ]
    results = read_results(folder(tmp_path, lines))
    assert [variant.name for variant in variants(results.frame)] == [
        "tent [batch_size=16, no steps]",
        "tent [batch_size=64, no steps]",
        "tent [batch_size=64, steps=2]",
        "eta",
    ]
    assert results.frame["label"].tolist() == ["tent", "tent", "tent", "eta", "eta"]
