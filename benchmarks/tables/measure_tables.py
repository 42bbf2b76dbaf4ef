"""Measure `eq.Estimator` beside NannyML's CBPE, and others, on the same chunks of the same tables.

    pip install "nannyml==0.13.1" "pandas<3" statsmodels
    python -m benchmarks.tables.measure_tables benchmarks/tables --tables FOLDER
    python -m benchmarks.tables.tables_page

The first command is a row for each chunk in chunks.csv. FOLDER has elec.npz, weather.npz and car_loan.npz
(`benchmarks.estimators.subjects.tables`), on each of which two networks are trained from two seeds. NannyML's
own data with NannyML's own probabilities come with its package: loans of two classes, credit cards of three.
NannyML's report of its use is switched off. Without NannyML, its columns are empty.
"""

import argparse
import importlib
import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

import equipoise as eq
from benchmarks.estimators.nannyml_parity import CASES, labels_of, probabilities, with_predictions
from benchmarks.estimators.subjects import tables
from equipoise.calibration.sets import set_threshold
from equipoise.estimators import ATC, TemperatureScaledConfidence, mean_confidence

SEEDS = (0, 1)

CHUNK_ROWS = {"elec": 1000, "weather": 1000, "car_loan": 2500}
"""Rows of a chunk of a table; NannyML's own data are ten chunks."""

OWN = {"classification_binary": "nannyml loans", "classification_multiclass": "nannyml cards"}
"""The name of NannyML's own data of a kind."""

LABELS, DRAWS = (10, 50, 200), 10
"""Labels of each chunk that come late, of rows drawn at random, and how many times they are drawn."""

COVERAGE = 0.9

OWN_CHUNKS = 10
NINETY = 1.645
"""The sampling errors of half of a 90 % interval."""

Doubles: TypeAlias = npt.NDArray[np.float64]
Whole: TypeAlias = npt.NDArray[np.int64]


class Answered(NamedTuple):
    """What a model answers to held-out rows, and to a stream in order.

    Attributes:
        data: the name of the data.
        network: the name of the network.
        seed: of its training.
        chunk_rows: the rows of a chunk.
        held_out: probabilities (N, C).
        labels: of these, (N).
        stream: probabilities (M, C).
        truth: the labels of the stream, (M).
    """

    data: str
    network: str
    seed: int
    chunk_rows: int
    held_out: Doubles
    labels: Whole
    stream: Doubles
    truth: Whole

    def accuracy(self, part: slice) -> float:
        """The true accuracy of a chunk."""
        return float((self.stream[part].argmax(1) == self.truth[part]).mean())

    def chunks(self) -> list[slice]:
        """The whole chunks of the stream."""
        ends = range(self.chunk_rows, len(self.truth) + 1, self.chunk_rows)
        return [slice(end - self.chunk_rows, end) for end in ends]


def of_nannyml() -> Iterator[Answered]:
    """NannyML's own data with the probabilities that come with them."""
    if importlib.util.find_spec("nannyml") is None:
        return
    datasets: Any = importlib.import_module("nannyml.datasets")
    for case in CASES:
        reference, later, targets = getattr(datasets, case.load)()
        reference = with_predictions(case, reference)
        later = with_predictions(case, later.merge(targets, on="id"))
        yield Answered(
            OWN[case.problem],
            "its own",
            0,
            len(later) // OWN_CHUNKS,
            probabilities(case, reference),
            labels_of(case, reference).numpy(),
            probabilities(case, later),
            labels_of(case, later).numpy(),
        )


def of_tables(folder: Path) -> Iterator[Answered]:
    """The networks of the tables in a folder."""
    for case in tables(folder, SEEDS):
        subject = case.make()
        (x, y), (later, truth) = subject.held_out, subject.streams["in order"]
        with torch.no_grad():
            held_out, stream = (subject.model(rows).double().softmax(1).numpy() for rows in (x, later))
        yield Answered(
            case.data,
            case.network,
            case.seed,
            CHUNK_ROWS[case.data],
            held_out,
            y.numpy(),
            stream,
            truth.numpy(),
        )


def by_nannyml(met: Answered) -> pd.DataFrame:
    """CBPE's value of each chunk, and the ends of the 90 % interval of its sampling error.

    NaN without NannyML.
    """
    chunks = met.chunks()
    if importlib.util.find_spec("nannyml") is None:
        return pd.DataFrame(np.nan, index=range(len(chunks)), columns=["value", "low", "high"])
    nannyml: Any = importlib.import_module("nannyml")
    classes = met.held_out.shape[1]
    names = [f"p{each}" for each in range(classes)]

    def frame(shares: Doubles, labels: Whole) -> pd.DataFrame:
        return pd.DataFrame(shares, columns=names).assign(y_pred=shares.argmax(1), y_true=labels)

    estimator = nannyml.CBPE(
        problem_type="classification_binary" if classes == 2 else "classification_multiclass",
        y_pred_proba="p1" if classes == 2 else dict(enumerate(names)),
        y_pred="y_pred",
        y_true="y_true",
        metrics=["accuracy"],
        chunker=nannyml.chunk.SizeBasedChunker(met.chunk_rows, incomplete="keep"),
    )
    estimator.fit(frame(met.held_out, met.labels))
    rows = len(chunks) * met.chunk_rows
    found = estimator.estimate(frame(met.stream[:rows], met.truth[:rows])).filter(period="analysis").to_df()
    value, error = (found["accuracy", name].to_numpy() for name in ("value", "sampling_error"))
    return pd.DataFrame({"value": value, "low": value - NINETY * error, "high": value + NINETY * error})


def estimator_of(met: Answered) -> eq.Estimator:
    """The estimator of a model."""
    return eq.Estimator.fit(met.held_out, met.labels)


def with_labels(
    estimators: list[eq.Estimator], met: Answered, part: slice, labels: int, draw: np.random.Generator
) -> dict[str, float]:
    """How far estimates of a chunk are off after so many of its labels have come, and whether intervals hold.

    Each estimator draws labels of its own. Later chunks have them, too.
    """
    truth, off, held = met.accuracy(part), [], []
    for estimator in estimators:
        report = estimator.update(met.stream[part])
        rows = draw.choice(met.chunk_rows, labels, replace=False)
        estimator.label(met.truth[part][rows], ids=report.ids[0] + rows)
        found = estimator.last.accuracy
        off.append(abs(found.value - truth))
        held.append(found.low <= truth <= found.high)
    return {f"{labels} labels off": float(np.mean(off)), f"{labels} labels held": float(np.mean(held))}


def of_sets(estimator: eq.Estimator, met: Answered, part: slice) -> dict[str, object]:
    """How many sets of the last chunk have the label, and their size; and of split conformal prediction."""
    shares, truth = met.stream[part], met.truth[part]
    rows = np.arange(len(truth))
    chosen = estimator.sets(shares, coverage=COVERAGE)
    scores = 1 - met.held_out[np.arange(len(met.labels)), met.labels]
    threshold = float(set_threshold(torch.from_numpy(scores), COVERAGE))
    return {
        "covered": float(chosen[rows, truth].mean()),
        "set size": float(chosen.sum(1).mean()),
        "split conformal covered": float((1 - shares[rows, truth] <= threshold).mean()),
    }


def chunk_rows(met: Answered, draw: np.random.Generator) -> Iterator[dict[str, object]]:
    """A row for each chunk."""
    held_out, labels = torch.from_numpy(met.held_out).log(), torch.from_numpy(met.labels)
    held_out = held_out.clamp(min=-30)
    estimator = estimator_of(met)
    scaled = TemperatureScaledConfidence.fit(logits=held_out, target=labels)
    thresholds = ATC.fit(logits=held_out / scaled.temperature, target=labels)
    rest = float((met.held_out.argmax(1) == met.labels).mean())
    theirs, labelled = by_nannyml(met), {n: [estimator_of(met) for _ in range(DRAWS)] for n in LABELS}
    for number, part in enumerate(met.chunks()):
        shares = met.stream[part]
        logits = torch.from_numpy(shares).log().clamp(min=-30)
        report = estimator.update(shares)
        yield {
            **{name: getattr(met, name) for name in ("data", "network", "seed")},
            "chunk": number,
            "rows": len(shares),
            "truth": met.accuracy(part),
            "equipoise": report.accuracy.value,
            "low": report.accuracy.low,
            "high": report.accuracy.high,
            "inside": report.accuracy.inside,
            "drift": report.drift,
            "CBPE": theirs["value"][number],
            "CBPE low": theirs["low"][number],
            "CBPE high": theirs["high"][number],
            "confidence": float(mean_confidence(logits=logits)),
            "scaled confidence": float(scaled.accuracy(logits=logits)),
            "ATC": float(thresholds.accuracy(logits=logits / scaled.temperature)),
            "held-out accuracy": rest,
            **of_sets(estimator, met, part),
            **{
                name: value
                for labels, own in labelled.items()
                for name, value in with_labels(own, met, part, labels, draw).items()
            },
        }


def main() -> None:
    """Write chunks.csv, and print how far each estimate is off on each kind of data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for chunks.csv")
    parser.add_argument("--tables", type=Path, help="folder of .npz files; without, NannyML's data alone")
    arguments = parser.parse_args()
    os.environ["NML_DISABLE_USAGE_LOGGING"] = "1"
    rows: list[dict[str, object]] = []
    draw = np.random.default_rng(0)
    for source in (of_nannyml(), *([of_tables(arguments.tables)] if arguments.tables else [])):
        for met in source:
            began = time.perf_counter()
            rows += chunk_rows(met, draw)
            print(f"{met.data}, {met.network}, {met.seed}: {time.perf_counter() - began:.0f} s", flush=True)
    frame = pd.DataFrame(rows)
    frame.to_csv(arguments.out / "chunks.csv", index=False, float_format="%.6g", lineterminator="\n")
    errors = frame[["equipoise", "CBPE", "held-out accuracy"]].sub(frame["truth"], axis=0).abs()
    print(errors.groupby(frame["data"]).mean().to_string(float_format="{:.4f}".format))


if __name__ == "__main__":
    main()
