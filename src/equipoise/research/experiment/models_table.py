"""The trained models of a run as a table."""

import os
from pathlib import Path

import pandas as pd
from safetensors import SafetensorError, safe_open

from equipoise.research.experiment.sweep import MODELS
from equipoise.research.experiment.trained_model import TrainedModelInfo

COLUMNS = ("file", "backbone", "data", "trained_on", "targets", "seed", "epochs")


def models_table(out: str | os.PathLike[str]) -> pd.DataFrame:
    """A row for each trained model of a run, with the file that `load_source_model` takes.

    Args:
        out: the folder that `equipoise run --out` was given.
    """
    described = ((path, _described(path)) for path in (Path(out) / MODELS).glob("*.safetensors"))
    rows = [
        {
            **vars(info),
            "file": str(path),
            "trained_on": " + ".join(info.trained_on),
            "targets": ", ".join(info.targets),
        }
        for path, info in described
        if info is not None
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values(["data", "backbone", "trained_on", "seed"], ignore_index=True)


def _described(path: Path) -> TrainedModelInfo | None:
    """The description in a file; None for a rehearsal, an unfinished training or a damaged file."""
    try:
        with safe_open(path, framework="pt", device="cpu") as opened:
            return TrainedModelInfo.from_header(dict(opened.metadata() or {}))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None
