"""The lines of a run, validated, as one frame: a row for each result that counts."""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd
from pydantic import TypeAdapter

from equipoise.errors import DataError, OptionError
from equipoise.research.experiment.schema import CellResult, StreamSummary

K = TypeVar("K")
T = TypeVar("T")

METRICS = ("accuracy", "ece", "nll", "entropy", "brier")
BETTER = {"accuracy": 1, "ece": -1, "nll": -1, "brier": -1, "entropy": 0}
"""1 where higher is better, -1 where lower is; entropy has no better."""
TEMPERINGS = ("none", "mean", "median", "sample", "agreement", "rehearsed", "fixed")
"""The temperings in the order in which they are shown; others follow."""
METHOD_ORDER = (
    "source", "norm", "bn_alpha", "bn_ema", "tent", "pseudo_label", "shot_im", "eta", "eata", "sar", "deyo",
    "poem", "rdumb", "roid", "cmf", "cotta", "rmt", "rotta", "petta", "t3a", "lame", "foa_shift", "memo",
    "sotta", "dec", "poise",
)  # fmt: skip
"""The methods in the order in which they are shown; others follow."""
BINS = 15
"""The number of bins of a result's reliability."""
LARGEST = 1e100
"""A number beyond it is no score and no count: its square would not be finite."""
_PROVENANCE = ("code", "equipoise", "torch", "device", "model", "stream", "images", "classes", "left_out")
_IDENTITY = ("data", "backbone", "protocol", "target", "tier", "shift", "seed", "name", "label", "method")
AT_BEST_TEMPERATURE = {"ece": "floor_ece", "nll": "floor_nll"}
"""The columns of a metric at the best temperature, found with labels; of raw results alone."""
ESTIMATES = {"value": "estimate", "covered": "estimate_covered", "off": "estimate_off"}
"""The columns of the accuracy that was estimated without labels, of the share of right intervals, and of the
mean distance along the stream."""
OVER_TIME = ("trace", "bins")
"""The columns of a stream over time, each batch of it or bins; None in most results."""
FRAME_COLUMNS = (
    *_IDENTITY,
    "options",
    "batch_size",
    "tempering",
    *METRICS,
    *AT_BEST_TEMPERATURE.values(),
    *ESTIMATES.values(),
    "reliability",
    *OVER_TIME,
    "described",
    *_PROVENANCE,
)


class Scope(NamedTuple):
    """The subject of one table: the setting, network and protocol that all of its results share."""

    data: str
    limit: int | None
    epochs: int
    input_size: int | None
    order: str
    origin: str
    backbone: str
    protocol: str
    order_options: str = ""
    """Of the order, as JSON; empty where it has none."""
    domain_images: int | None = None


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
        frame: the results that count, a row each, with `FRAME_COLUMNS`. `name` is the label or, where a label
            stands for several methods, the label with their differences; `tier` is 0 where there are none.
        scopes: the scope of each row.
        failures: the cells that failed and were not done well since, nor with a newer model or stream.
        streams: the source models' norms and temperatures.
        damaged: the number of lines that could not be read.
        left_aside: the number of readable results that do not count, by the reason.
    """

    frame: pd.DataFrame
    scopes: tuple[Scope, ...] = ()
    failures: tuple[CellResult, ...] = ()
    streams: tuple[StreamSummary, ...] = ()
    damaged: int = 0
    left_aside: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def by_scope(self) -> dict[Scope, pd.DataFrame]:
        """The rows of each scope, whole data sets before trials."""
        rows = grouped(range(len(self.scopes)), self.scopes.__getitem__)
        return {scope: self.frame.iloc[rows[scope]] for scope in sorted(rows, key=_scope_order)}

    def only(self, methods: Collection[str] = (), temperings: Collection[str] = ()) -> "Results":
        """The rows of some methods (labels, or names in the registry) and temperings; of all by default."""
        kept = pd.Series(True, index=self.frame.index)
        columns = {"--methods": ["label", "method", "name"], "--temperings": ["tempering"]}
        for (option, where), names in zip(columns.items(), (methods, temperings), strict=True):
            there = set(self.frame[where].to_numpy().ravel())
            if unknown := set(names) - there:
                known, odd = ", ".join(sorted(there)), ", ".join(sorted(unknown))
                raise OptionError(f"{option}: expected some of {known}, got {odd}")
            kept &= self.frame[where].isin(list(names)).any(axis=1) | (not names)
        scopes = tuple(scope for scope, keep in zip(self.scopes, kept, strict=True) if keep)
        return replace(self, frame=self.frame.loc[kept], scopes=scopes)


def read_results(folder: Path) -> Results:
    """Read `results.jsonl` and, if it is there, `streams.jsonl`; DataError where there are no results."""
    path = folder / "results.jsonl"
    if not path.is_file():
        state = "has no results.jsonl" if folder.is_dir() else "is not a folder"
        raise DataError(f"{folder}: expected the folder of a run, with results.jsonl in it; this {state}")
    lines, damaged = _read(path, TypeAdapter(CellResult), _is_sound_line)
    if not lines:
        raise DataError(
            f"{path}: expected a result a line, as JSON; found none ({damaged} lines cannot be read)"
        )
    streams, damaged_streams = _read(folder / "streams.jsonl", TypeAdapter(StreamSummary), _is_sound_stream)
    return replace(collect(lines), streams=tuple(streams), damaged=damaged + damaged_streams)


def collect(lines: Sequence[CellResult]) -> Results:
    """Results of lines in the order of the file, of which those count that belong together.

    At one place (setting, network, domain, tier, seed) the results of the newest model and stream count, of
    one label with one tempering those of the newest code of the method; the newest is the last.
    """
    newest: dict[Any, tuple[str, str]] = {}
    codes: dict[Any, tuple[str, str]] = {}
    counted: dict[Any, CellResult] = {}
    done: set[Any] = set()
    failures: list[CellResult] = []
    aside: Counter[str] = Counter()
    for line in reversed(lines):
        cell, scope = line["cell"], scope_of(line["cell"])
        made = cell["model"], cell["stream"]
        place = scope._replace(protocol=""), cell["target"], cell["tier"], cell["seed"]
        experiment = scope, cell["label"], cell["method"], cell["tempering"]
        if line["status"] == "failed":
            if newest.get(place, made) == made and (place, experiment) not in done:
                failures.insert(0, line)
        elif newest.setdefault(place, made) != made:
            aside["of a model or stream that was made again since"] += 1
        elif codes.setdefault(experiment, _code(cell)) != _code(cell):
            aside["of older code of the method, or of another rehearsal"] += 1
        else:
            counted.setdefault((place, experiment, _traits(line)), line)
            done.add((place, experiment))
    names = _names(counted.values())
    in_order = list(counted.values())[::-1]
    kept = sorted(in_order, key=lambda line: _order(line, names))
    frame = pd.DataFrame([_row(line, names) for line in kept], columns=list(FRAME_COLUMNS))
    return Results(frame, tuple(scope_of(line["cell"]) for line in kept), tuple(failures), left_aside=aside)


def _code(cell: Mapping[str, Any]) -> tuple[str, str]:
    """The code behind a cell, and the size of its rehearsal."""
    return cell["code"], json.dumps(cell.get("rehearsal"), sort_keys=True)


def scope_of(cell: Mapping[str, Any]) -> Scope:
    """The scope of the tables that a cell belongs to."""
    options = cell.get("order_options")
    order_options = json.dumps(options, sort_keys=True) if options else ""
    known = {"domain_images": None, **cell, "order_options": order_options}
    return Scope(**{name: known[name] for name in Scope._fields})


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by a key; groups and items keep their order."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def variants(runs: pd.DataFrame) -> list[Variant]:
    """Every method and tempering of some rows, in the order in which they are shown."""
    return list(dict.fromkeys(map(Variant, runs["name"], runs["tempering"])))


def rank(name: str, known: tuple[str, ...]) -> tuple[int, str]:
    """The place of a name in an order; names that are not in it follow by the alphabet."""
    return (known.index(name), "") if name in known else (len(known), name)


def _row(line: CellResult, names: Mapping[Any, str]) -> dict[str, Any]:
    cell, tier = line["cell"], line["cell"]["tier"] or 0
    oracle: Mapping[str, Any] = line.get("oracle", {})
    estimate: Mapping[str, Any] = line.get("estimate", {})
    known = {
        **line,
        **line["made"],
        **cell,
        **(line["scores"] or {}),
        "tier": tier,
        "shift": f"{cell['target']}, tier {tier}" if tier else cell["target"],
        "name": names[_label(line), _traits(line)],
        "options": json.dumps(cell["options"], sort_keys=True),
        **{column: oracle.get(metric, math.nan) for metric, column in AT_BEST_TEMPERATURE.items()},
        **{column: estimate.get(entry, math.nan) for entry, column in ESTIMATES.items()},
    }
    return {column: known.get(column) for column in FRAME_COLUMNS}


def _names(lines: Iterable[CellResult]) -> dict[Any, str]:
    """The name of each method: its label and, where a label stands for several, their differences."""
    found: dict[Any, dict[str, dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(_label(line), {})[_traits(line)] = json.loads(_traits(line))
    names = {}
    for label, several in found.items():
        options = {option for traits in several.values() for option in traits}
        different = sorted(o for o in options if len({json.dumps(t.get(o)) for t in several.values()}) > 1)
        for key, traits in several.items():
            told = [f"{o}={traits[o]}" if o in traits else f"no {o}" for o in different]
            names[label, key] = f"{label[1]} [{', '.join(told)}]" if told else label[1]
    return names


def _label(line: CellResult) -> tuple[Any, str]:
    return scope_of(line["cell"])._replace(protocol=""), line["cell"]["label"]


def _traits(line: CellResult) -> str:
    """The options that make a method another one; a seed among them follows the cell's."""
    cell = line["cell"]
    options = {name: value for name, value in cell["options"].items() if name != "seed"}
    return json.dumps({**options, "method": cell["method"], "batch_size": cell["batch_size"]}, sort_keys=True)


def _order(line: CellResult, names: Mapping[Any, str]) -> tuple[object, ...]:
    cell, name = line["cell"], names[_label(line), _traits(line)]
    return (*rank(cell["method"], METHOD_ORDER), name, *rank(cell["tempering"], TEMPERINGS))


def _read(path: Path, shape: TypeAdapter[Any], is_sound: Callable[[Any], bool]) -> tuple[list[Any], int]:
    """Read the lines of a file, if it is there, that have a shape, of each key the last; count the others."""
    latest: dict[str, Any] = {}
    damaged = 0
    if not path.is_file():
        return [], 0
    with path.open("rb") as file:
        for text in filter(bytes.strip, file):
            value = _valid(text, shape)
            if value is None or not (_is_moderate(value) and is_sound(value)):
                damaged += 1
            else:
                latest.pop(value["key"], None)  # so that a line written again counts as written last
                latest[value["key"]] = value
    return list(latest.values()), damaged


def _valid(text: bytes, shape: TypeAdapter[Any]) -> Any:
    """The value of a line, with the fields that older lines lack; None for no JSON, or not of the shape.

    Half a character (a lone surrogate), which no file can hold, becomes "?".
    """
    try:
        value = json.loads(text)
        if b"\\ud" in text.lower():
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
        if isinstance(value, dict) and isinstance(value.get("cell"), dict):
            value = {"classes": 0, "left_out": 0, **value, "cell": {"code": "", **value["cell"]}}
        return shape.validate_python(value, strict=True)
    except (ValueError, RecursionError):  # also no UTF-8, or nested without end
        return None


def _is_moderate(value: Any) -> bool:
    """Whether every number is finite and of a size to calculate with."""
    if isinstance(value, (dict, list)):
        return all(map(_is_moderate, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, (int, float)) or -LARGEST <= value <= LARGEST


def _is_sound_line(line: CellResult) -> bool:
    bins = line["reliability"]
    sound = bins is None or (
        len(bins["count"]) == len(bins["confidence"]) == len(bins["correct"]) == BINS
        and min(bins["count"]) >= 0
    )
    return sound and line["status"] == ("failed" if line["scores"] is None else "ok")


def _is_sound_stream(stream: StreamSummary) -> bool:
    levels, edges, counts = stream["levels"], stream["tau_edges"], stream["tau_counts"]
    ascending = all(a < b for several in (levels, edges) for a, b in pairwise(several))
    whole = 0 < len(levels) == len(stream["norms"]) == len(stream["taus"]) and stream["kappa"] > 0
    return ascending and whole and len(edges) == len(counts) + 1 and min(counts) >= 0


def _scope_order(scope: Scope) -> tuple[object, ...]:
    """Whole data sets before trials, so that the numbers to compare come first."""
    trial = (scope.limit is not None, -(scope.limit or 0), -scope.epochs, scope.input_size or 0)
    unusual = (scope.order != "shuffled", scope.order, scope.order_options, scope.origin != "official")
    return scope.data, *trial, *unusual, scope.backbone, rank(scope.protocol, ("online", "after-pass"))
