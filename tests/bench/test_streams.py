"""Streams of several domains in a run: scores, descriptions, bins, and images gathered batch by batch."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from equipoise.bench import adapting, stream_data
from equipoise.bench.progress import RunProgress
from equipoise.bench.schema import CellResult
from equipoise.bench.source_model import model_path, read_source_model
from equipoise.bench.sweep import SweepSummary, run_recipe
from equipoise.bench.workers import InProcess
from equipoise.data import make_stream, read_stored
from equipoise.report.results import read_results

from .toy import toy_recipe

RECURRING = {"order": "recurring", "order_options": {"passes": 3}}


def run(out: Path, **changes: Any) -> SweepSummary:
    """Two corruptions at tier 2, streamed to one method."""
    given = {"methods": {"tent": {"batch_size": 16}}, "temperings": ["none"], "protocols": ["online"]}
    recipe = toy_recipe(**{"data": "toy-tiers", "tiers": [2], "trace": "bins", **given, **changes})
    adapting._stream_data.cache_clear()
    with RunProgress(Console(quiet=True)) as progress:
        return run_recipe(recipe, data=out, out=out, workers=InProcess(), progress=progress)


def lines(out: Path) -> list[CellResult]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def test_a_recurring_stream_is_described_and_kept_in_bins(tmp_path: Path) -> None:
    assert run(tmp_path, **RECURRING) == SweepSummary(cells=1, before=0, failed=0)
    (line,) = lines(tmp_path)
    assert line["cell"]["order_options"] == {"passes": 3}
    assert (line["images"], line["cell"]["target"], line["cell"]["tier"]) == (240, "all", 2)
    assert "3 times over" in line["described"]
    bins = line["bins"]
    assert sum(bins["images"]) == 240
    assert sum(segment["bins"] for segment in bins["segments"]) == len(bins["images"])
    assert [each["name"] for each in bins["segments"]][:3] == ["pass 1: dim", "pass 1: grain", "pass 2: dim"]
    assert line["scores"] is not None
    assert sum(bins["correct"]) == round(240 * line["scores"]["accuracy"])
    assert "trace" not in line
    read_results(tmp_path)  # the shape is the schema's


def test_an_option_of_the_order_is_another_result_and_a_default_is_not(tmp_path: Path) -> None:
    run(tmp_path, order="correlated")
    same = run(tmp_path, order="correlated", order_options={"concentration": 0.1})
    assert (same.cells, same.before) == (1, 1)
    other = run(tmp_path, order="correlated", order_options={"concentration": 5.0})
    assert (other.cells, other.before) == (1, 0)
    summaries = [json.loads(text) for text in (tmp_path / "streams.jsonl").read_text().splitlines()]
    assert [each["order_options"]["concentration"] for each in summaries] == [0.1, 5.0]
    results = read_results(tmp_path)
    assert len(results.by_scope) == 2


def test_images_of_no_class_are_adapted_to_but_not_scored(tmp_path: Path) -> None:
    run(tmp_path, order="noisy", order_options={"share": 0.5}, methods={"source": {"batch_size": 16}})
    (line,) = lines(tmp_path)
    assert (line["images"], line["no_class"], line["classes"]) == (80, 80, 3)
    parts = [read_stored(path) for path in sorted((tmp_path / "cache").glob("toy-tiers-*-2-*"))]
    trained = read_source_model(model_path(tmp_path / "models", line["cell"]["model"]), torch.device("cpu"))
    with torch.no_grad():
        hits = sum(int((trained.model(p.pixels.float()).argmax(1) == p.labels).sum()) for p in parts)
    assert line["scores"] is not None
    assert line["scores"]["accuracy"] == pytest.approx(hits / 80)
    assert line["reliability"] is not None
    assert sum(line["reliability"]["count"]) == sum(line["bins"]["images"]) == 80


def test_a_large_stream_is_gathered_batch_by_batch_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"order": "noisy", "protocols": ["online", "after-pass"]}
    run(tmp_path / "held", **changes)
    monkeypatch.setattr(stream_data, "HELD_BYTES", 1000)
    largest = 0
    real = stream_data.StreamData.batches

    def watched(self: stream_data.StreamData, size: int) -> Any:
        nonlocal largest
        assert self.held is None
        for batch in real(self, size):
            largest = max(largest, len(batch))
            yield batch

    monkeypatch.setattr(stream_data.StreamData, "batches", watched)
    run(tmp_path / "gathered", **changes)
    assert largest == 16
    held, gathered = (
        {each["key"]: each["scores"] for each in lines(tmp_path / n)} for n in ("held", "gathered")
    )
    assert held == gathered


def test_the_source_logits_are_those_of_each_place(tmp_path: Path) -> None:
    run(tmp_path, **RECURRING)
    model = (tmp_path / "models").glob("*.safetensors")
    trained = read_source_model(next(model), torch.device("cpu"))
    paths = sorted((tmp_path / "cache").glob("toy-tiers-*-2-*"))
    parts = {path.name: read_stored(path) for path in paths}
    found = stream_data.read_stream(trained, parts, "recurring", 0, {"passes": 2})
    stream = make_stream([part.labels for part in parts.values()], "recurring", 0, passes=2)
    (pixels, labels), *_ = stream.batches(list(parts.values()), len(stream))
    with torch.no_grad():
        torch.testing.assert_close(found.logits, trained.model(pixels))
    assert found.labels.equal(labels)


def test_streams_may_have_fewer_images_than_the_training(tmp_path: Path) -> None:
    run(tmp_path, order="continual", domain_images=10)
    run(tmp_path, order="continual")
    few, whole = lines(tmp_path)
    assert (few["images"], whole["images"]) == (20, 80)
    assert few["cell"]["model"] == whole["cell"]["model"]
    assert few["cell"]["domain_images"] == 10
    assert len(read_results(tmp_path).by_scope) == 2
