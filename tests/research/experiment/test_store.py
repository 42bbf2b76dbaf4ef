"""The store: every cell once, whatever happens."""

import json
from pathlib import Path
from typing import cast

import pytest

from equipoise.errors import StateError
from equipoise.research.experiment.schema import CellResult, StreamSummary
from equipoise.research.experiment.store import Store
from tests.research.report import written


def line(key: str, status: str = "ok") -> CellResult:
    return cast("CellResult", written.line("tent", key=key, error="as asked" if status == "failed" else None))


def keys(folder: Path) -> list[str]:
    return [json.loads(text)["key"] for text in (folder / "results.jsonl").read_text().splitlines()]


def test_what_is_written_is_there_when_opened_again(tmp_path: Path) -> None:
    with Store(tmp_path / "new") as store:
        store.add(None, [line("a"), line("b")])
        store.add(None, [line("a")])  # a second time: not written
    with Store(tmp_path / "new") as store:
        assert store.done == {"a", "b"}
    assert keys(tmp_path / "new") == ["a", "b"]


@pytest.mark.parametrize("cut", [2, 10, 200, None])
def test_a_line_cut_short_is_dropped_and_the_rest_kept(tmp_path: Path, cut: int | None) -> None:
    path, there = tmp_path / "results.jsonl", {"a"} if cut else set()
    with Store(tmp_path) as store:
        store.add(None, [line("a"), line("b")])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut] if cut else whole[:20])  # in the last line, or in the first
    with Store(tmp_path) as store:
        assert store.done == there
        store.add(None, [line("b")])
    assert keys(tmp_path) == [*there, "b"]


def test_a_damaged_line_in_the_middle_is_not_dropped_silently(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(
        '{"key": "a", "status": "ok"}\nwhat\n{"key": "b", "status": "ok"}\n'
    )
    with pytest.raises(StateError, match=r"results\.jsonl, line 2"), Store(tmp_path):
        pass


def test_failures_are_tried_again_and_stay_once(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add(None, [line("a"), line("b", "failed"), line("c", "failed")])
        assert store.done == {"a"}
    with Store(tmp_path) as store:
        assert store.done == {"a"}
        store.forget_failures({"a", "b"})  # c is not tried in this run: its failure stays
        assert keys(tmp_path) == ["a", "c"]
        store.add(None, [line("b")])
    assert keys(tmp_path) == ["a", "c", "b"]


def test_results_of_other_code_are_counted(tmp_path: Path) -> None:
    old, other_target = line("a"), line("b")
    other_target["cell"]["target"] = "noisy"
    with Store(tmp_path) as store:
        store.add(None, [old, other_target, line("c")])
    path = tmp_path / "results.jsonl"
    *lines, last = path.read_text().splitlines()
    older = last.replace('"code": "c0de", "options": {}, ', "")  # before lines had a code
    assert older != last
    path.write_text("\n".join([*lines, older]) + "\n")
    new = line("d")["cell"]
    with Store(tmp_path) as store:
        assert store.of_other_code([new]) == 1  # the one without a code
        new["code"], new["options"] = "edited", {"steps": 2}
        assert store.of_other_code([new]) == 2
        assert store.of_other_code([]) == 0


def test_a_second_run_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add(None, [line("a")])
        with pytest.raises(StateError, match="another run"), Store(tmp_path):
            pass
        store.add(None, [line("b")])  # the first one goes on
    with Store(tmp_path) as store:
        assert store.done == {"a", "b"}


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add(None, [line("a"), line("b")])
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-1])  # as some editors save it
    with Store(tmp_path) as store:
        assert store.done == {"a", "b"}
        store.add(None, [line("c")])
    assert keys(tmp_path) == ["a", "b", "c"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(StateError, match="expected a folder"), Store(tmp_path / "out"):
        pass


def stream(key: str) -> StreamSummary:
    return cast("StreamSummary", written.stream_line(key=key))


def test_a_stream_is_written_once_and_known_when_opened_again(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.add(stream("s"), [line("a")])
        store.add(stream("s"), [line("b")])
        assert store.streams == {"s"}
    with Store(tmp_path) as store:
        assert store.streams == {"s"}
        store.add(stream("s"), [line("c")])
        store.add(stream("t"), [])
    written = (tmp_path / "streams.jsonl").read_text().splitlines()
    assert [json.loads(text)["key"] for text in written] == ["s", "t"]
