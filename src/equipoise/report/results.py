"""The lines of a run, validated, as one frame: a row for each result that counts, and reasons for the rest."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from equipoise.bench.schema import Cell, CellResult, Protocol, StreamSummary
from equipoise.errors import DataError, OptionError

METRICS = ("accuracy", "ece", "nll", "entropy", "brier")
BETTER = {"accuracy": 1, "ece": -1, "nll": -1, "brier": -1, "entropy": 0}
"""1 where higher is better, -1 where lower is; entropy has no better."""
TEMPERINGS = ("none", "mean", "median", "sample", "agreement", "rehearsed", "fixed")
"""The temperings in the order in which they are shown; others follow."""
METHODS = ("source", "norm", "tent", "eta", "eata", "t3a", "sotta", "dec", "poise")
"""The methods in the order in which they are shown; others follow."""
PROTOCOLS: tuple[Protocol, ...] = ("online", "after-pass")
BINS = 15
"""The number of bins of a result's reliability."""
LARGEST = 1e100
"""A number beyond it is no score and no count: its square would not be finite."""


class Setting(NamedTuple):
    """The setting that all results of one table share: data, limit, training, input size, order, origin."""

    data: str
    limit: int | None
    epochs: int
    input_size: int | None
    order: str
    origin: str = "official"


class Scope(NamedTuple):
    """The subject of one table: a setting, a network and a protocol."""

    setting: Setting
    backbone: str
    protocol: Protocol


class Variant(NamedTuple):
    """A method, by its name in the results, with the tempering of its logits."""

    name: str
    tempering: str

    def __str__(self) -> str:
        return f"{self.name} ({'raw' if self.tempering == 'none' else self.tempering})"


@dataclass(frozen=True)
class Results:
    """Everything that a folder of results holds.

    Attributes:
        frame: the results that count, a row each: the fields of the cell, `name` (the label, or the label and
            the options that tell it from others of that label), `shift` (target and tier), the scores, the
            reliability sums, and the versions that made it. `tier` is 0 where the data set has none.
        scope_of_row: the scope of each row of the frame.
        failures: the cells that failed and were not done well since, nor with a newer model or stream.
        streams: the source models' norms and temperatures.
        damaged: the number of lines that could not be read.
        left_aside: the number of readable results that do not count, by the reason.
    """

    frame: pd.DataFrame
    scope_of_row: tuple[Scope, ...] = ()
    failures: tuple[CellResult, ...] = ()
    streams: tuple[StreamSummary, ...] = ()
    damaged: int = 0
    left_aside: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def by_scope(self) -> dict[Scope, pd.DataFrame]:
        """The rows of each scope, whole data sets before trials."""
        rows: dict[Scope, list[int]] = {}
        for row, scope in enumerate(self.scope_of_row):
            rows.setdefault(scope, []).append(row)
        return {scope: self.frame.iloc[rows[scope]] for scope in sorted(rows, key=_scope_order)}

    def only(self, methods: Collection[str] = (), temperings: Collection[str] = ()) -> "Results":
        """The rows of some methods (by label or name in the registry) and temperings; all where none is given."""
        frame = self.frame
        kept = pd.Series(True, index=frame.index)
        if methods:
            _check_names(methods, {*frame["label"], *frame["method"], *frame["name"]}, "--methods")
            kept &= frame[["label", "method", "name"]].isin(list(methods)).any(axis=1)
        if temperings:
            _check_names(temperings, set(frame["tempering"]), "--temperings")
            kept &= frame["tempering"].isin(list(temperings))
        rows = [row for row, keep in enumerate(kept) if keep]
        if not rows and len(frame):
            raise DataError("no result is of these methods with these temperings")
        return replace(self, frame=frame.iloc[rows], scope_of_row=tuple(self.scope_of_row[r] for r in rows))


def read_results(folder: Path) -> Results:
    """Read `results.jsonl` and, if it is there, `streams.jsonl`; DataError where there are no results.

    Of several lines with the same key the last one counts. Tables shall show only what belongs together: at
    one place (setting, network, domain, tier, seed) the results of the newest model and stream count, and of
    one label with one tempering those of the newest code of the method. "Newest" is the last in the file.
    """
    path = folder / "results.jsonl"
    if not path.is_file():
        state = "has no results.jsonl" if folder.is_dir() else "is not a folder"
        raise DataError(f"{folder}: expected the folder of a run, with results.jsonl in it; this {state}")
    found, damaged = _read(path, _LINE, _is_sound_line)
    if not found:
        raise DataError(f"{path}: expected a result a line, as JSON; found none ({damaged} lines cannot be read)")
    streams, damaged_streams = [], 0
    if (folder / "streams.jsonl").is_file():
        streams, damaged_streams = _read(folder / "streams.jsonl", _STREAM, _is_sound_stream)
    lines = cast("list[CellResult]", found)
    return replace(
        collect(lines),
        streams=tuple(cast("list[StreamSummary]", streams)),
        damaged=damaged + damaged_streams,
    )


def collect(lines: Sequence[CellResult]) -> Results:
    """Results of lines: those that belong together in a frame, the others counted by the reason."""
    good = [line for line in lines if line["status"] == "ok"]
    newest = {_place(line["cell"]): _made_from(line["cell"]) for line in good}
    current = [line for line in good if newest[_place(line["cell"])] == _made_from(line["cell"])]
    codes = {_experiment(line["cell"]): line["cell"]["code"] for line in current}
    counted = [line for line in current if codes[_experiment(line["cell"])] == line["cell"]["code"]]
    reasons = {
        "of a model or stream that was made anew since": len(good) - len(current),
        "of older code of the method": len(current) - len(counted),
    }
    names = _names(line["cell"] for line in counted)
    rows = {(scope_of(line["cell"]), _run(line, names)): line for line in counted}  # of twins the last
    ordered = sorted(rows.values(), key=lambda line: _order(line["cell"], names))
    return Results(
        frame=pd.DataFrame([_row(line, names) for line in ordered], columns=list(_COLUMNS)),
        scope_of_row=tuple(scope_of(line["cell"]) for line in ordered),
        failures=tuple(_failures(lines)),
        left_aside={reason: number for reason, number in reasons.items() if number},
    )


def variants(runs: pd.DataFrame) -> list[Variant]:
    """Every method and tempering of some rows, in the order in which they are shown."""
    return list(dict.fromkeys(map(Variant, runs["name"], runs["tempering"])))


def tempering_rank(tempering: str) -> tuple[int, str]:
    """The place of a tempering in the order in which they are shown."""
    return _rank(tempering, TEMPERINGS)


def setting_of(source: Cell | StreamSummary) -> Setting:
    """The setting that a cell or a stream belongs to."""
    return Setting(
        source["data"],
        source["limit"],
        source["epochs"],
        source["input_size"],
        source["order"],
        source["origin"],
    )


def scope_of(cell: Cell) -> Scope:
    """The scope of the table that a cell belongs to."""
    return Scope(setting_of(cell), cell["backbone"], cell["protocol"])


_COLUMNS = (
    *("data", "backbone", "protocol", "target", "tier", "shift", "seed", "label", "name", "method", "options"),
    *("tempering", "batch_size", "limit", "epochs", "input_size", "order", "origin", "model", "stream", "code"),
    *("images", "classes", "left_out", *METRICS, "reliability", "equipoise", "torch", "device"),
)
_LINE = TypeAdapter[Any](CellResult)
_STREAM = TypeAdapter[Any](StreamSummary)
_Names = Mapping[tuple[Setting, str, str, str], str]


def _row(line: CellResult, names: _Names) -> dict[str, Any]:
    """The row of a line; None where an old line lacks a field."""
    cell = line["cell"]
    known = {**line, **line["made"], **cell, **(line["scores"] or {})}
    known |= {"tier": cell["tier"] or 0, "shift": shift_name(cell["target"], cell["tier"] or 0)}
    known |= {"name": names[_identity(cell)], "options": json.dumps(cell["options"], sort_keys=True)}
    return {column: known.get(column) for column in _COLUMNS}


def shift_name(target: str, tier: int) -> str:
    """A domain, with the tier where there are tiers."""
    return f"{target}, tier {tier}" if tier else target


def _run(line: CellResult, names: _Names) -> tuple[object, ...]:
    cell = line["cell"]
    return names[_identity(cell)], cell["tempering"], cell["target"], cell["tier"], cell["seed"]


def _names(cells: Iterable[Cell]) -> dict[tuple[Setting, str, str, str], str]:
    """The name of each method: its label and, where a label stands for several, their differences.

    A recipe that was changed between two runs into one folder makes several of one label:
    "tent [batch_size=16]" and "tent [batch_size=64]". A seed among the options follows the cell's.
    """
    found = {_identity(cell): _traits(cell) for cell in cells}
    alike: dict[tuple[Setting, str, str], list[dict[str, str]]] = {}
    for (*group, _), traits in found.items():
        alike.setdefault((*group,), []).append(traits)
    names = {}
    for identity, traits in found.items():
        setting, backbone, label, _ = identity
        others = alike[setting, backbone, label]
        told = [
            f"{name}={value}"
            for name, value in sorted(traits.items())
            if any(other.get(name) != value for other in others)
        ]
        told += [f"no {name}" for name in sorted({name for other in others for name in other} - traits.keys())]
        names[identity] = f"{label} [{', '.join(told)}]" if told else label
    return names


def _identity(cell: Cell) -> tuple[Setting, str, str, str]:
    return setting_of(cell), cell["backbone"], cell["label"], json.dumps(_traits(cell), sort_keys=True)


def _traits(cell: Cell) -> dict[str, str]:
    options = {name: json.dumps(value) for name, value in cell["options"].items() if name != "seed"}
    return {**options, "method": cell["method"], "batch_size": str(cell["batch_size"])}


def _order(cell: Cell, names: _Names) -> tuple[object, ...]:
    label = names[_identity(cell)]
    return (*_rank(cell["method"], METHODS), label, *tempering_rank(cell["tempering"]))


def _rank(name: str, known: tuple[str, ...]) -> tuple[int, str]:
    return (known.index(name), "") if name in known else (len(known), name)


def _check_names(wanted: Collection[str], there: set[str], option: str) -> None:
    if unknown := [name for name in wanted if name not in there]:
        raise OptionError(f"{option}: expected some of {', '.join(sorted(there))}, got {', '.join(unknown)}")


def _failures(lines: Sequence[CellResult]) -> Iterator[CellResult]:
    """The cells that failed, without those done well later, or at a place with a newer model or stream."""
    places, experiments = {}, {}
    for at, line in enumerate(lines):
        if line["status"] == "ok":
            places[_place(line["cell"])] = at
            experiments[_place(line["cell"]), _experiment(line["cell"])] = at
    for at, line in enumerate(lines):
        if line["status"] == "failed":
            place = _place(line["cell"])
            later = places.get(place, -1)
            renewed = later > at and _made_from(lines[later]["cell"]) != _made_from(line["cell"])
            if not renewed and experiments.get((place, _experiment(line["cell"])), -1) < at:
                yield line


def _place(cell: Cell) -> tuple[object, ...]:
    """Where a model meets a stream; there is one of each, however many methods adapt."""
    return setting_of(cell), cell["backbone"], cell["target"], cell["tier"], cell["seed"]


def _made_from(cell: Cell) -> tuple[str, str]:
    return cell["model"], cell["stream"]


def _experiment(cell: Cell) -> tuple[object, ...]:
    """The label of a method with a tempering, whose results shall all be of the same code."""
    return scope_of(cell), cell["label"], cell["method"], cell["tempering"]


def _read(path: Path, shape: TypeAdapter[Any], sound: Any) -> tuple[list[Any], int]:
    """The values of a file that have a shape, of each key the last, in order; and the number of the others."""
    latest: dict[str, Any] = {}
    damaged = 0
    with path.open("rb") as file:
        for text in filter(bytes.strip, file):
            try:
                value = shape.validate_python(_completed(_loaded(text)), strict=True)
            except (ValueError, RecursionError, ValidationError):  # also no UTF-8, or nested without end
                damaged += 1
                continue
            if not (_is_moderate(value) and sound(value)):
                damaged += 1
                continue
            latest.pop(value["key"], None)  # so that a line written again counts as written last
            latest[value["key"]] = value
    return list(latest.values()), damaged


def _loaded(text: bytes) -> Any:
    """The value of a line; half a character (a lone surrogate), which no file can hold, becomes "?"."""
    value = json.loads(text)
    if b"\\ud" in text.lower():
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def _completed(value: Any) -> Any:
    """A line with the fields that lines had not before equipoise 0.2: no code is known, no class counted."""
    if not isinstance(value, dict) or not isinstance(value.get("cell"), dict):
        return value
    return {"classes": 0, "left_out": 0, **value, "cell": {"code": "", **value["cell"]}}


def _is_moderate(value: Any) -> bool:
    """Whether every number is finite and of a size to calculate with."""
    if isinstance(value, dict):
        return all(map(_is_moderate, value.values()))
    if isinstance(value, list):
        return all(map(_is_moderate, value))
    return not isinstance(value, (int, float)) or (-LARGEST <= value <= LARGEST)


def _is_sound_line(line: CellResult) -> bool:
    bins = line["reliability"]
    if bins is not None:
        sizes = {len(bins["count"]), len(bins["confidence"]), len(bins["correct"])}
        if sizes != {BINS} or min(bins["count"]) < 0:
            return False
    return line["status"] == ("failed" if line["scores"] is None else "ok")


def _is_sound_stream(stream: StreamSummary) -> bool:
    ascending = all(
        low < high for several in (stream["levels"], stream["tau_edges"]) for low, high in pairwise(several)
    )
    whole = 0 < len(stream["levels"]) == len(stream["norms"]) == len(stream["taus"])
    binned = len(stream["tau_edges"]) == len(stream["tau_counts"]) + 1
    return ascending and whole and binned and stream["kappa"] > 0 and min(stream["tau_counts"]) >= 0


def _scope_order(scope: Scope) -> tuple[object, ...]:
    """Whole data sets before trials, so that the numbers to compare come first."""
    data, limit, epochs, size, order, origin = scope.setting
    trial = (limit is not None, -(limit or 0), -epochs, size or 0)
    unusual = (order != "shuffled", order, origin != "official")
    return data, *trial, *unusual, scope.backbone, PROTOCOLS.index(scope.protocol)
