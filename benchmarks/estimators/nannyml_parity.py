"""Holds `equipoise.estimators.CBPE` against NannyML's CBPE on the made-up data that NannyML ships.

    pip install "nannyml==0.13.1" "pandas<3" statsmodels
    python -m benchmarks.estimators.nannyml_parity

Both are fitted on the reference data, and estimate the accuracy of each of ten chunks of the data after it:
loans, two classes, and credit cards, three. The prediction is the most probable class, for both: the file of
loans has predictions at a threshold of 0.65. NannyML calibrates a class only if that lowers the ECE on random
tenths of the reference data; the second column of NannyML is with that test switched off, as equipoise has
none. The true accuracy is in the last column. NannyML's report of its use is switched off.
"""

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from equipoise.estimators import CBPE

CHUNKS = 10

Doubles: TypeAlias = npt.NDArray[np.float64]


class Case(NamedTuple):
    """A data set of NannyML.

    Attributes:
        load: the function of nannyml.datasets that reads it.
        problem: the problem type.
        target: the column of the labels.
        columns: those of the probabilities, by class; for two classes that of the positive one.
    """

    load: str
    problem: str
    target: str
    columns: Mapping[Any, str]


CARDS = ("highstreet_card", "prepaid_card", "upmarket_card")
CASES = [
    Case("load_synthetic_car_loan_dataset", "classification_binary", "repaid", {1: "y_pred_proba"}),
    Case(
        "load_synthetic_multiclass_classification_dataset",
        "classification_multiclass",
        "y_true",
        {card: f"y_pred_proba_{card}" for card in CARDS},
    ),
]


def probabilities(case: Case, data: pd.DataFrame) -> Doubles:
    """The probabilities of all classes, shape (N, C)."""
    probs: Doubles = data[list(case.columns.values())].to_numpy(dtype=np.float64)
    return probs if len(case.columns) > 1 else np.concatenate([1 - probs, probs], axis=1)


def with_predictions(case: Case, data: pd.DataFrame) -> pd.DataFrame:
    """The data with the most probable class as the prediction."""
    names = list(case.columns) if len(case.columns) > 1 else [0, 1]
    return data.assign(y_pred=[names[place] for place in probabilities(case, data).argmax(1)])


def logits_of(case: Case, data: pd.DataFrame) -> Tensor:
    """The logarithms of the probabilities."""
    return torch.from_numpy(probabilities(case, data)).log()


def labels_of(case: Case, data: pd.DataFrame) -> Tensor:
    """The labels as numbers of classes."""
    names = list(case.columns) if len(case.columns) > 1 else [0, 1]
    return torch.tensor([names.index(value) for value in data[case.target]])


def estimates_of_nannyml(
    case: Case, reference: pd.DataFrame, later: pd.DataFrame, *, every_class: bool
) -> list[float]:
    """NannyML's estimate for each chunk."""
    module: Any = importlib.import_module("nannyml.performance_estimation.confidence_based.cbpe")
    tested = module.needs_calibration
    if every_class:
        module.needs_calibration = lambda *_args, **_kwargs: True
    try:
        columns: Any = dict(case.columns) if len(case.columns) > 1 else case.columns[1]
        estimator = module.CBPE(
            problem_type=case.problem,
            y_pred_proba=columns,
            y_pred="y_pred",
            y_true=case.target,
            metrics=["accuracy"],
            chunk_number=CHUNKS,
        )
        frame = estimator.fit(reference).estimate(later).filter(period="analysis").to_df()
    finally:
        module.needs_calibration = tested
    values: list[float] = frame[("accuracy", "value")].tolist()
    return values


def rows() -> Iterator[dict[str, object]]:
    """A row for each chunk of each data set."""
    datasets: Any = importlib.import_module("nannyml.datasets")
    for case in CASES:
        reference, later, targets = getattr(datasets, case.load)()
        reference = with_predictions(case, reference)
        later = with_predictions(case, later.merge(targets, on="id"))
        fitted = CBPE.fit(logits=logits_of(case, reference), target=labels_of(case, reference))
        default = estimates_of_nannyml(case, reference, later, every_class=False)
        always = estimates_of_nannyml(case, reference, later, every_class=True)
        for number, part in enumerate(np.array_split(np.arange(len(later)), CHUNKS)):
            chunk = later.iloc[part]
            yield {
                "problem": case.problem,
                "chunk": number,
                "equipoise": float(fitted.accuracy(logits=logits_of(case, chunk))),
                "NannyML": default[number],
                "NannyML, every class": always[number],
                "true": float((chunk["y_pred"] == chunk[case.target]).mean()),
            }


def main() -> None:
    """Print the estimates of all chunks, and how far they are from each other and from the truth."""
    os.environ["NML_DISABLE_USAGE_LOGGING"] = "1"
    table = pd.DataFrame(rows())
    print(table.to_string(index=False, float_format="{:.6f}".format))
    for problem, part in table.groupby("problem"):
        for column in ("NannyML", "NannyML, every class"):
            print(f"{problem}: at most {(part['equipoise'] - part[column]).abs().max():.2e} from {column}")
        for column in ("equipoise", "NannyML"):
            print(
                f"{problem}: {column} {(part[column] - part['true']).abs().mean():.4f} from the truth, mean"
            )


if __name__ == "__main__":
    main()
