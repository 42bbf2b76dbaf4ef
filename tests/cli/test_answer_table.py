"""Tables of answers: which columns are found, how labels become classes, and what is refused."""

from collections.abc import Callable
from gzip import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from equipoise.cli.answer_table import NO_LABEL, find_columns, read_reference, read_stream_rows
from equipoise.errors import DataError, MissingExtraError

HALVES = {"p_cat": [0.25, 0.5, 1], "p_dog": [0.75, 0.5, 0]}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a table of three rows, or of columns of its own, under a name."""

    def written(name: str = "reference.csv", **columns: Any) -> Path:
        given = columns or {**HALVES, "target": ["dog", "cat", "cat"]}
        pd.DataFrame({key: each for key, each in given.items() if each is not None}).to_csv(
            tmp_path / name, index=False
        )
        return tmp_path / name

    return written


def classes_of(path: Path, **named: Any) -> tuple[tuple[str, ...], list[int]]:
    rows, classes = read_reference(path, find_columns(path, path, timed=False, **named))
    return classes, rows.labels.tolist()


def refused(path: Path, *said: str, stream: Path | None = None, timed: bool = False, **named: Any) -> None:
    with pytest.raises(DataError) as error:
        columns = find_columns(path, stream or path, timed=timed, **named)
        _, classes = read_reference(path, columns)
        read_stream_rows(stream or path, columns, classes)
    for words in said:
        assert words in str(error.value)


@pytest.mark.parametrize("start", ["probability_", "proba_", "prob_", "p_", "y_pred_proba_", "y_proba_"])
def test_columns_of_one_beginning_that_sum_to_one_are_found(write: Write, start: str) -> None:
    path = write(
        p_value=[7, 8, 9],
        **{f"{start}cat": [0.25, 0.5, 1], f"{start}dog": [0.75, 0.5, 0]},
        label=["dog", "cat", "cat"],
    )
    if start == "p_":
        refused(path, "p_value, p_cat, p_dog", "--probabilities")
    named = ["p_cat", "p_dog"] if start == "p_" else []
    columns = find_columns(path, path, named, timed=False)
    assert columns.probabilities == (f"{start}cat", f"{start}dog")
    assert (columns.target, columns.time) == ("label", None)
    rows, classes = read_reference(path, columns)
    assert classes == ("cat", "dog")
    assert rows.labels.tolist() == [1, 0, 0]
    assert rows.probabilities.tolist() == [[0.25, 0.75], [0.5, 0.5], [1, 0]]


def test_one_column_is_of_the_second_class(write: Write) -> None:
    path = write(y_pred_proba=[0.25, 0.5, 1], y_true=[0, 1, 1], score=[0.1, 0.2, 0.3])
    columns = find_columns(path, path, timed=False)
    rows, classes = read_reference(path, columns)
    assert (columns.probabilities, classes) == (("y_pred_proba",), ("0", "1"))
    assert rows.probabilities.tolist() == [[0.75, 0.25], [0.5, 0.5], [0, 1]]
    assert rows.labels.tolist() == [0, 1, 1]
    assert classes_of(path, probabilities=["score"]) == (("0", "1"), [0, 1, 1])
    yes = write(y_pred_proba=[0.25, 0.5, 1], y_true=[False, True, True])
    assert classes_of(yes) == (("False", "True"), [0, 1, 1])
    text = write(y_pred_proba=[0.25, 0.5, 1], y_true=["no", "yes", "yes"])
    refused(text, "second of two classes", "0 and 1, or False and True, in 'y_true', got no, yes")


@pytest.mark.parametrize(
    ("labels", "classes", "places"),
    [
        (["p_dog", "p_cat", "p_cat"], ("p_cat", "p_dog"), [1, 0, 0]),
        (["dog", "cat", "cat"], ("cat", "dog"), [1, 0, 0]),
        ([1, 0, 0], ("0", "1"), [1, 0, 0]),
        ([1.0, 0.0, 0.0], ("0", "1"), [1, 0, 0]),
    ],
)
def test_labels_name_a_column_its_end_or_its_place(
    write: Write, labels: list[Any], classes: tuple[str, ...], places: list[int]
) -> None:
    assert classes_of(write(**HALVES, target=labels)) == (classes, places)


def test_the_end_of_a_name_is_what_follows_the_last_sign_that_all_share(write: Write) -> None:
    path = write(p_1_carp=[0.25, 0.5, 1], p_1_cart=[0.75, 0.5, 0], y=["cart", "carp", "cart"])
    assert classes_of(path) == (("carp", "cart"), [1, 0, 1])
    numbers = write(p_1=[0.25, 0.5, 0], p_10=[0.25, 0.5, 1], p_100=[0.5, 0, 0], y=[100, 1, 10])
    assert classes_of(numbers) == (("1", "10", "100"), [2, 0, 1])


def test_late_labels_are_missing_and_other_columns_may_hold_anything(write: Write) -> None:
    path = write(**HALVES, target=[1, 0, 0], note=["a,b", '"', ""])
    stream = write("stream.csv", **HALVES, target=[None, 1, None], note=["x", None, "y"])
    columns = find_columns(path, stream, timed=False)
    _, classes = read_reference(path, columns)
    assert read_stream_rows(stream, columns, classes).labels.tolist() == [NO_LABEL, 1, NO_LABEL]
    bare = write("stream.csv", **HALVES)
    assert read_stream_rows(bare, columns, classes).labels.tolist() == [NO_LABEL] * 3


def test_rounded_probabilities_are_divided_by_their_sum(write: Write) -> None:
    path = write(p_a=[0.33, 0.5], p_b=[0.33, 0.5], p_c=[0.33, 0.01], target=["a", "c"])
    rows, _ = read_reference(path, find_columns(path, path, timed=False))
    assert np.abs(rows.probabilities.sum(1) - 1).max() < 1e-12
    assert rows.probabilities[0].tolist() == pytest.approx([1 / 3] * 3)


def test_times_have_no_zone_and_are_those_of_utc(write: Write) -> None:
    path = write()
    told = ["2026-05-01T23:30:00-02:00", "2026-05-02", "2026-05-02 07:00:00.250"]
    stream = write("stream.csv", **HALVES, date=told)
    columns = find_columns(path, stream, timed=True)
    rows = read_stream_rows(stream, columns, ("cat", "dog"))
    assert columns.time == "date"
    wanted = ["2026-05-02T01:30:00", "2026-05-02T00:00:00", "2026-05-02T07:00:00.250000"]
    assert [each.isoformat() for each in rows.times] == wanted
    taken = rows.take(np.array([2, 0]))
    assert taken.times[0] == rows.times[2]
    assert taken.probabilities.tolist() == [[1, 0], [0.25, 0.75]]


def test_files_that_are_no_tables_are_refused(write: Write, tmp_path: Path) -> None:
    empty, folder, bytes_ = tmp_path / "empty.csv", tmp_path / "folder", tmp_path / "b.csv"
    empty.touch()
    folder.mkdir()
    bytes_.write_bytes(b"\xff\xfe\x00\x81" * 50)
    packed = tmp_path / "b.csv.gz"
    packed.write_bytes(b"no gzip")
    refused(empty, "empty.csv: expected a table", "No columns")
    refused(folder, "got a folder")
    refused(bytes_, "b.csv: expected a table, .csv, .csv.gz or .parquet, that pandas can read")
    refused(packed, "b.csv.gz: expected a table", "gzip")
    packed.write_bytes(compress(b"p_cat,p_dog,target\n" * 9999)[:20])
    refused(packed, "b.csv.gz: expected a table", "end-of-stream")
    packed.write_bytes(packed.read_bytes()[:10] + b"\xff" * 40)
    refused(packed, "b.csv.gz: expected a table", "decompressing")
    (tmp_path / "heads.csv").write_text("p_cat,p_dog,target\n")
    refused(tmp_path / "heads.csv", "expected rows below the names of the columns", probabilities=["p_cat"])
    refused(tmp_path / "none.csv", "none.csv: expected a file of answers")
    (tmp_path / "semicolons.csv").write_text("p_cat;p_dog;target\n0.5;0.5;cat\n")
    refused(tmp_path / "semicolons.csv", "expected commas between the columns", "';'")


def test_a_packed_file_is_read(write: Write, tmp_path: Path) -> None:
    plain = write()
    pd.read_csv(plain).to_csv(tmp_path / "packed.csv.gz", index=False)
    told: list[tuple[int, int]] = []
    columns = find_columns(tmp_path / "packed.csv.gz", plain, timed=False)
    rows, _ = read_reference(tmp_path / "packed.csv.gz", columns, lambda *done: told.append(done))
    assert len(rows) == 3
    assert told[-1][0] == told[-1][1] > 0


def test_parquet_is_read_where_pandas_can(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("reference.parquet")
    asked: list[Any] = []

    def read(file: Path, columns: list[str] | None = None) -> pd.DataFrame:
        asked.append(columns)
        return pd.read_csv(file, usecols=columns)

    monkeypatch.setattr(pd, "read_parquet", read)
    assert classes_of(path) == (("cat", "dog"), [1, 0, 0])
    assert asked[-1] == ["p_cat", "p_dog", "target"]

    def missing(file: Path, columns: list[str] | None = None) -> pd.DataFrame:
        raise ImportError("no engine")

    monkeypatch.setattr(pd, "read_parquet", missing)
    with pytest.raises(MissingExtraError, match="pip install pyarrow"):
        find_columns(path, path, timed=False)


def test_missing_columns_are_told_with_those_there_are(write: Write) -> None:
    path = write()
    refused(path, "expected a column 'truth', it has p_cat, p_dog, target", target="truth")
    refused(path, "expected a column 'p_bird', it has p_cat", probabilities=["p_cat", "p_bird"])
    refused(path, "stream.csv: expected a column 'p_dog'", stream=write("stream.csv", p_cat=[1, 1]))
    refused(path, "one column of times", "none of time, timestamp", "--time NAME, or --by 1000", timed=True)
    refused(path, "expected a column 'when', it has", timed=True, time="when")
    refused(write(**HALVES), "one column of labels", "it has p_cat, p_dog, none of target", "--target NAME")
    two = write(**HALVES, label=[0, 0, 1], y=[0, 0, 1])
    refused(two, "one column of labels: it has label, y. Name it: --target NAME")
    refused(write(cat=[1, 0], dog=[0, 1], y=[0, 1]), "no columns probability_*", "--probabilities cat,dog")
    both = write(**HALVES, proba_a=[0, 0, 1], proba_b=[1, 1, 0], y=[0, 0, 1])
    refused(both, "found proba_a, proba_b and p_cat, p_dog, which could each be")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"p_cat": [0.25, None, None]}, "expected a number in column 'p_cat', got nan in row 2 and 1 more"),
        ({"p_cat": [0.25, "a", 0.5]}, "expected a number in column 'p_cat', got a in row 2"),
        (
            {"p_cat": [0.25, 0.5, -1]},
            "expected a probability from 0 to 1 in column 'p_cat', got -1.0 in row 3",
        ),
        ({"p_cat": [0.25, 0.45, 0.9]}, "p_cat, p_dog to sum to 1 in each row, got 0.950 in row 2 and 1 more"),
        ({"target": ["dog", None, "cat"]}, "a label in every row, got none in column 'target' of row 2"),
        ({"target": ["dog", "bird", "cat"]}, "labels in 'target' that are classes of p_cat, p_dog: cat, dog"),
    ],
)
def test_bad_rows_are_refused_by_their_number(write: Write, columns: dict[str, Any], said: str) -> None:
    path = write(**{**HALVES, "target": ["dog", "cat", "cat"], **columns})
    refused(
        path,
        f"reference.csv: expected {said}" if "expected" not in said else said,
        probabilities=list(HALVES),
    )


def test_labels_of_a_stream_that_are_no_classes_are_refused(write: Write) -> None:
    stream = write("stream.csv", **HALVES, target=["dog", None, "bird"])
    refused(write(), "stream.csv: expected one of the classes cat, dog", "got 'bird' in row 3", stream=stream)


@pytest.mark.parametrize("told", [["May 1", "2026-05-01", ""], [1.7e9, 1.8e9, 1.9e9]])
def test_times_that_are_none_are_refused(write: Write, told: list[Any]) -> None:
    stream = write("stream.csv", **HALVES, time=told)
    refused(write(), "expected dates as 2026-05-01", f"got {told[0]} in row 1", stream=stream, timed=True)
