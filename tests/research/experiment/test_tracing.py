import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from equipoise.errors import DataError
from equipoise.research.data import DataSet, Images, Reader, Shift, register_data_set
from equipoise.research.experiment.progress import RunProgress
from equipoise.research.experiment.schema import CellResult, EstimatedAccuracy
from equipoise.research.experiment.scoring import trace_stream
from equipoise.research.experiment.sweep import run_recipe
from equipoise.research.experiment.workers import InProcess
from equipoise.streams import Segment

from .toy import toy_images, toy_recipe


@register_data_set
class ToyDrift(DataSet):
    """Plain images, then dark ones, in this order."""

    name = "toy-drift"
    about = "made by the tests"
    classes: tuple[str, ...] = ("top", "middle", "bottom")

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def shifts(self) -> list[Shift]:
        return [Shift("later", "later", ("plain",))]

    def read(self, part: str, limit: int | None, reader: Reader) -> Images:
        if part == "plain":
            return toy_images("plain", 300)
        return Images.join([toy_images("noisy", 30), toy_images("dark", 25)])

    def segments(self, part: str, limit: int | None) -> list[Segment]:
        return [Segment("noise", 30), Segment("night", 25)]


def test_batches_and_segments_are_counted_by_hand() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [1.0, 0.0], [0.0, 0.5]])
    labels = torch.tensor([0, 0, 1, 1, 1])
    guess = EstimatedAccuracy(value=0.5, low=0.4, high=0.6)
    trace = trace_stream(
        [logits[:2], logits[2:4], logits[4:]],
        labels,
        [None, guess, None],
        [Segment("day", 3), Segment("night", 2)],
    )
    sure = [1 / (1 + torch.tensor(-gap).exp()) for gap in (2.0, 1.0, 3.0, 1.0, 0.5)]
    assert [(batch["images"], batch["correct"]) for batch in trace["batches"]] == [(2, 1), (2, 1), (1, 1)]
    means = [float(sure[0] + sure[1]) / 2, float(sure[2] + sure[3]) / 2, float(sure[4])]
    assert [batch["confidence"] for batch in trace["batches"]] == pytest.approx(means, abs=1e-5)
    assert [batch["estimate"] for batch in trace["batches"]] == [None, guess, None]
    day, night = trace["segments"]
    assert (day["name"], day["images"], night["name"], night["images"]) == ("day", 3, "night", 2)
    assert day["scores"]["accuracy"] == pytest.approx(2 / 3)
    assert night["scores"]["accuracy"] == 0.5
    assert sum(night["reliability"]["confidence"]) == pytest.approx(float(sure[3] + sure[4]), abs=1e-5)


def test_without_segments_the_stream_is_one() -> None:
    trace = trace_stream([torch.eye(3)], torch.arange(3), [None], [])
    assert [(segment["name"], segment["images"]) for segment in trace["segments"]] == [("all", 3)]


def test_segments_that_do_not_fit_the_stream_are_refused() -> None:
    with pytest.raises(DataError, match="segments of 3 images in all, got 2 of day"):
        trace_stream([torch.eye(3)], torch.arange(3), [None], [Segment("day", 2)])


def test_segments_of_one_name_are_refused_and_empty_ones_left_out() -> None:
    with pytest.raises(DataError, match="different names, got day, day"):
        trace_stream([torch.eye(3)], torch.arange(3), [None], [Segment("day", 2), Segment("day", 1)])
    trace = trace_stream([torch.eye(3)], torch.arange(3), [None], [Segment("day", 3), Segment("night", 0)])
    assert [segment["name"] for segment in trace["segments"]] == ["day"]


def test_a_traced_recipe_keeps_the_order_of_the_data_set_and_each_segment(tmp_path: Path) -> None:
    recipe = toy_recipe(
        data="toy-drift",
        order="recorded",
        trace=True,
        seeds=[0],
        protocols=["online", "after-pass"],
        temperings=["none"],
        methods={"source": {"batch_size": 10}},
    )
    with RunProgress(Console(quiet=True)) as progress:
        run_recipe(recipe, data=tmp_path, out=tmp_path / "out", workers=InProcess(), progress=progress)
    lines: list[CellResult] = [
        json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    ]
    online, after = sorted(lines, key=lambda line: line["cell"]["protocol"], reverse=True)
    assert "trace" not in after  # only answers given while adapting have a time
    trace = online["trace"]
    assert [batch["images"] for batch in trace["batches"]] == [10, 10, 10, 10, 10, 5]
    found = [(segment["name"], segment["images"]) for segment in trace["segments"]]
    assert found == [("noise", 30), ("night", 25)]
    hits = [batch["correct"] for batch in trace["batches"]]
    assert sum(hits[:3]) == round(30 * trace["segments"][0]["scores"]["accuracy"])
    assert sum(hits[3:]) == round(25 * trace["segments"][1]["scores"]["accuracy"])
    assert online["scores"] is not None
    assert sum(hits) == round(55 * online["scores"]["accuracy"])


def test_images_of_no_class_are_left_out_of_batches_and_segments() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    labels = torch.tensor([0, -1, -1, -1])
    segments = [Segment("day", 2), Segment("night", 2)]
    trace = trace_stream([logits[:2], logits[2:]], labels, [None, None], segments)
    assert [(batch["images"], batch["correct"]) for batch in trace["batches"]] == [(1, 1), (0, 0)]
    assert [(each["name"], each["images"], each["scores"]["accuracy"]) for each in trace["segments"]] == [
        ("day", 1, 1.0)
    ]
