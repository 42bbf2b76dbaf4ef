"""Streams of several domains in a run: scores, descriptions, bins, and images gathered batch by batch."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.research.data import make_image_stream, read_stored
from equipoise.research.experiment import one_run
from equipoise.research.experiment.sweep import SweepSummary
from equipoise.research.experiment.trained_model import model_path, read_source_model
from equipoise.research.report.results import read_results

from .toy import SMALL, go, lines, scores, toy_recipe

RECURRING = {"order": "recurring", "order_options": {"passes": 3}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model that all streams of these tests meet."""
    out = tmp_path_factory.mktemp("trained")
    run(out, methods={"source": {"batch_size": 40}}, order="continual", trace=None)
    (out / "results.jsonl").unlink()
    (out / "streams.jsonl").unlink()
    return out


@pytest.fixture
def out(trained: Path, tmp_path: Path) -> Path:
    """A copy of that folder without results."""
    return Path(shutil.copytree(trained, tmp_path / "out"))


def run(out: Path, **changes: Any) -> SweepSummary:
    """Two corruptions at tier 2, streamed to one method."""
    given = {"methods": {"tent": {"batch_size": 16}}, **SMALL}
    recipe = toy_recipe(**{"data": "toy-tiers", "tiers": [2], "trace": "bins", **given, **changes})
    one_run._HELD.clear()
    return go(recipe, out, out)[0]


def test_a_recurring_stream_is_described_and_kept_in_bins(out: Path) -> None:
    assert run(out, **RECURRING) == SweepSummary(cells=1, before=0, failed=0)
    (line,) = lines(out)
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
    read_results(out)  # the shape is the schema's


def test_an_option_of_the_order_is_another_result_and_a_default_is_not(out: Path) -> None:
    run(out, order="correlated")
    same = run(out, order="correlated", order_options={"concentration": 0.1})
    assert (same.cells, same.before) == (1, 1)
    other = run(out, order="correlated", order_options={"concentration": 5.0})
    assert (other.cells, other.before) == (1, 0)
    summaries = [json.loads(text) for text in (out / "streams.jsonl").read_text().splitlines()]
    assert [each["order_options"]["concentration"] for each in summaries] == [0.1, 5.0]
    results = read_results(out)
    assert len(results.by_scope) == 2


def test_images_of_no_class_are_adapted_to_but_not_scored(out: Path) -> None:
    run(out, order="noisy", order_options={"share": 0.5}, methods={"source": {"batch_size": 16}})
    (line,) = lines(out)
    assert (line["images"], line["no_class"], line["classes"]) == (80, 80, 3)
    parts = [read_stored(path) for path in sorted((out / "cache").glob("toy-tiers-*-2-*"))]
    trained = read_source_model(model_path(out / "models", line["cell"]["model"]), torch.device("cpu"))
    with torch.no_grad():
        hits = sum(int((trained.model(p.pixels.float()).argmax(1) == p.labels).sum()) for p in parts)
    assert line["scores"] is not None
    assert line["scores"]["accuracy"] == pytest.approx(hits / 80)
    assert line["reliability"] is not None
    assert sum(line["reliability"]["count"]) == sum(line["bins"]["images"]) == 80


def test_a_large_stream_is_gathered_batch_by_batch_with_the_same_result(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"order": "noisy", "protocols": ["online", "after-pass"]}
    run(out, **changes)
    monkeypatch.setattr(one_run, "HELD_BYTES", 1000)
    largest = 0
    real = one_run.StreamData.batches

    def watched(self: one_run.StreamData, size: int) -> Any:
        nonlocal largest
        assert self.held is None
        for batch in real(self, size):
            largest = max(largest, len(batch))
            yield batch

    monkeypatch.setattr(one_run.StreamData, "batches", watched)
    held = scores(out)
    (out / "results.jsonl").unlink()
    run(out, **changes)
    assert largest == 16
    assert scores(out) == held


def test_the_source_logits_are_those_of_each_place(out: Path) -> None:
    model = (out / "models").glob("*.safetensors")
    trained = read_source_model(next(model), torch.device("cpu"))
    paths = sorted((out / "cache").glob("toy-tiers-*-2-*"))
    parts = {path.name: read_stored(path) for path in paths}
    found = one_run.read_stream(trained, parts, "recurring", 0, {"passes": 2})
    stream = make_image_stream([part.labels for part in parts.values()], "recurring", 0, passes=2)
    (pixels, labels), *_ = stream.batches(list(parts.values()), len(stream))
    with torch.no_grad():
        torch.testing.assert_close(found.logits, trained.model(pixels))
    assert found.labels.equal(labels)


def test_one_stream_is_held_even_while_the_next_is_read(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, real = [], one_run.read_stream

    def watched(*given: Any) -> one_run.StreamData:
        held.append(len(one_run._HELD))
        return real(*given)

    monkeypatch.setattr(one_run, "read_stream", watched)
    methods = {name: {"batch_size": 16} for name in ("source", "norm")}
    run(out, order="continual", tiers=[1, 2], methods=methods)
    assert held == [0, 0]  # two streams, each read once for two methods
    assert len(one_run._HELD) == 1


def test_streams_may_have_fewer_images_than_the_training(out: Path) -> None:
    run(out, order="continual", domain_images=10)
    run(out, order="continual")
    few, whole = lines(out)
    assert (few["images"], whole["images"]) == (20, 80)
    assert few["cell"]["model"] == whole["cell"]["model"]
    assert few["cell"]["domain_images"] == 10
    assert len(read_results(out).by_scope) == 2
