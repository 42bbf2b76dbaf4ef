"""The frame of the remembered samples."""

import builtins
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import equipoise as eq
from equipoise.errors import MissingExtraError
from tests.production.monitor.streams import CLASSES, batches, bits, probabilities


def test_a_row_for_each_sample_with_plain_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 86_400.5)
    made = batches([4, 6, 5])
    monitor = eq.Monitor(window=10, keep=12, stream="camera")
    for index, batch in enumerate(made):
        monitor.observe(batch.logits, batch.step, request=None if index == 1 else str(index))
    monitor.label("2", made[2].labels)
    frame = monitor.frame()
    logits = torch.cat([b.logits for b in made])[-12:]
    p = probabilities(logits)
    assert len(frame) == 12
    assert frame["timestamp"].dtype.kind == "M"
    assert (frame["timestamp"] == pd.Timestamp("1970-01-02T00:00:00.5Z")).all()
    assert (frame["stream"] == "camera").all()
    assert frame["request"].isna().tolist() == [True] * 7 + [False] * 5
    assert frame["prediction"].tolist() == p.argmax(1).tolist()
    assert np.allclose(frame["confidence"], p.max(1), atol=1e-6)
    assert np.allclose(frame["entropy"], bits(p), atol=1e-5)
    assert np.allclose(frame[[f"probability_{k}" for k in range(CLASSES)]], p, atol=1e-6)
    assert frame["target"].isna().tolist() == [True] * 7 + [False] * 5
    assert frame["target"][7:].tolist() == made[2].labels.tolist()
    source = made[2].step.source_logits
    assert source is not None
    assert frame["source_prediction"][7:].tolist() == source.argmax(1).tolist()


def test_a_row_without_an_answer_has_no_class() -> None:
    monitor = eq.Monitor()
    monitor.observe(torch.tensor([[torch.nan, torch.nan], [1.0, 0.0]]), None)
    assert monitor.frame()["prediction"].isna().tolist() == [True, False]


def test_a_monitor_of_nothing_has_an_empty_frame() -> None:
    assert len(eq.Monitor().frame()) == 0


def test_without_pandas_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"equipoise\[bench\]"):
        eq.Monitor().frame()
