"""Rehearsals of the bench: made once on images that the model never saw, and what they do to answers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.calibration.regression import Process
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.research.data import Images, Shift, make_image_stream, register_data_set
from equipoise.research.experiment import rehearsals, sweep, trained_model
from equipoise.research.experiment.one_run import run_cells
from equipoise.research.experiment.plan import RunPlan
from equipoise.research.experiment.rehearsals import rehearsal_path, rehearsed_source, store_rehearsal
from equipoise.research.experiment.schema import Cell, CellResult
from equipoise.research.experiment.trained_model import held_out_images, source_images

from .toy import ToyDataSet, go, lines, model_of, toy_images, toy_recipe, trained_runs


class Many(ToyDataSet):
    """Enough images that half of them can be rehearsed with."""

    name = "many"

    @property
    def shifts(self) -> list[Shift]:
        return [Shift("dark", "dark", ("plain",))]

    def images(self, part: str) -> Images:
        return toy_images(part, 204 if part == "plain" else 80)


@register_data_set
class ManyTargets(Many):
    """Two streams for one model."""

    name = "many-targets"

    @property
    def shifts(self) -> list[Shift]:
        return [Shift(target, target, ("plain",)) for target in ("dark", "noisy")]


def made(folder: Path, limit: int | None = None, **entry: Any) -> RunPlan:
    """The run of poise on a model that is trained in the folder."""
    recipe = toy_recipe(
        data="many",
        seeds=[3],
        methods={"poise": {"batch_size": 20, "rehearsed": True, **entry}},
        training={"optimizer": "adam", "learning_rate": 1e-3, "epochs": 1, "batch_size": 32},
    )
    (run,) = trained_runs(recipe, Many(folder), folder, limit)
    return run


def rehearsed_cell(run: RunPlan) -> Cell:
    return next(cell for cell in run.cells.values() if cell["tempering"] == "rehearsed")


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Half of the images are held out, and few shifts are met: a tenth and all of them take a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained_model, "ONE_IN", 2)
        patch.setattr(rehearsals, "rehearse", partial(eq.rehearse, shifts=8))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rehearsals")


@pytest.fixture(scope="module")
def run(folder: Path) -> RunPlan:
    return made(folder)


@pytest.fixture(scope="module")
def source(folder: Path, run: RunPlan) -> SourceStatistics:
    return rehearsed_source(rehearsed_cell(run), run.model, model_of(run, folder), folder)


def by_protocol(found: list[CellResult]) -> dict[str, CellResult]:
    """The lines of that tempering by protocol."""
    return {line["cell"]["protocol"]: line for line in found if line["cell"]["tempering"] == "rehearsed"}


def test_the_model_was_trained_and_measured_without_the_held_out_images(folder: Path, run: RunPlan) -> None:
    parts = [held_out_images(run.model), source_images(run.model)]
    assert [len(part) for part in parts] == [102, model_of(run, folder).source.num_samples] == [102, 102]
    sums = [part.pixels.sum((1, 2, 3)).tolist() for part in parts]
    whole = toy_images("plain", 204).pixels.sum((1, 2, 3)).tolist()
    assert sums[0] != sums[1]
    assert sorted(sums[0] + sums[1]) == sorted(whole)  # none is on both sides, and none is lost


def test_a_rehearsal_is_of_the_held_out_images(
    folder: Path, run: RunPlan, source: SourceStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = source.rehearsal_of("poise")
    assert (found.samples, found.batch_size, found.seed) == (102, 20, 3)
    given: dict[str, Any] = {}

    def noted(model: Any, loader: Any, **options: Any) -> SourceStatistics:
        given.update(options, batches=list(loader))
        torch.rand(())  # a method may draw
        return source

    monkeypatch.setattr(rehearsals, "rehearse", noted)
    before = torch.get_rng_state()
    other: Any = {**rehearsed_cell(run), "batch_size": 10}
    rehearsed_source(other, run.model, model_of(run, folder), folder)
    assert torch.equal(before, torch.get_rng_state())
    images = torch.cat([pixels for pixels, _ in given.pop("batches")])
    held = held_out_images(run.model).pixels.float()
    assert sorted(images.sum((1, 2, 3)).tolist()) == sorted(held.sum((1, 2, 3)).tolist())
    assert not torch.equal(images, held)  # a random choice of them
    assert given == {
        "method": "poise",
        "source": model_of(run, folder).source,
        "samples": 2000,
        "shifts": None,
        "check_held_out": False,
        "batch_size": 10,
        "seed": 3,
        "progress": False,
        "norm_momentum": 0.1,
        "falls_back": True,
        "source_copy": "resident",
    }


def doubting(source: SourceStatistics, trusts: bool) -> SourceStatistics:
    """The same with a rehearsal that finds half of the answers right, and the source model far from that."""
    found, sign = source.rehearsal_of("poise"), 1.0 if trusts else -1.0
    assert found.gap is not None
    gap = replace(found.gap, weights=0 * found.gap.weights, bias=0 * found.gap.bias + 9.0 * sign)
    changed = replace(
        found,
        student=always(found.student, 0.0),
        compared=always(found.compared, 0.0),
        source=always(found.source, 9.0 * sign),
        lead=always(found.lead, 2.5 * sign),
        gap=gap,
        disagreement=1.0,  # no disagreement is more, so that the lead decides
        hottest=torch.full_like(found.hottest, 20.0),
    )
    return replace(source, rehearsals={"poise": changed})


def always(process: Process | None, value: float) -> Process:
    """A process that estimates this value, whatever comes."""
    assert process is not None
    return replace(process, targets=torch.full_like(process.targets, value), bias=process.bias * 0 + value)


@pytest.mark.parametrize("trusts", [False, True])
@pytest.mark.parametrize("falls_back", [True, False])
def test_a_run_gives_what_a_rehearsed_adapter_would(
    trusts: bool, falls_back: bool, folder: Path, source: SourceStatistics
) -> None:
    run = made(folder, options={"falls_back": falls_back})
    model = model_of(run, folder).model
    changed = doubting(source, trusts)
    changed.save(rehearsal_path(folder, rehearsed_cell(run)))
    scored = by_protocol(run_cells(run, folder, summarise=False)[1])
    images = toy_images("dark", 80)
    images = images.select(make_image_stream([images.labels], "shuffled", 3).rows)
    # The range of t is the regulariser's, and limits no rehearsed temperature.
    options = {n: v for n, v in rehearsed_cell(run)["options"].items() if n not in ("t_min", "t_max")}
    adapter = eq.create("poise", model, changed, **options)
    batches = images.pixels.float().split(20)
    online = torch.cat([adapter(x) for x in batches])
    after = torch.cat([adapter.predict(x) for x in batches])
    assert adapter.last is not None
    assert (adapter.last.answered_by == "source") == (trusts and falls_back)
    assert not 1.2 <= adapter.temperature <= 2.75
    raw = eq.create("poise", model, changed, tempering="none", **options)
    assert not torch.equal(online, torch.cat([raw(x) for x in batches]))
    for protocol, logits in (("online", online), ("after-pass", after)):
        assert scored[protocol]["status"] == "ok", scored[protocol]["traceback"]
        scores = scored[protocol]["scores"]
        assert scores is not None
        hits = (logits.argmax(1) == images.labels).double().mean()
        nll = -logits.double().log_softmax(1)[torch.arange(80), images.labels].mean()
        assert scores["accuracy"] == pytest.approx(float(hits), abs=1e-6)
        assert scores["nll"] == pytest.approx(float(nll), abs=2e-4)


def test_estimates_are_those_after_each_batch(folder: Path, run: RunPlan, source: SourceStatistics) -> None:
    source.save(rehearsal_path(folder, rehearsed_cell(run)))
    line = by_protocol(run_cells(replace(run, trace="batches"), folder, summarise=False)[1])["online"]
    images = toy_images("dark", 80)
    images = images.select(make_image_stream([images.labels], "shuffled", 3).rows)
    adapter = eq.Poise(model_of(run, folder).model, source)
    expected = []
    for x in images.pixels.float().split(20):
        adapter(x)
        assert adapter.accuracy is not None
        expected.append(adapter.accuracy.value)
    found = [batch["estimate"]["value"] for batch in line["trace"]["batches"] if batch["estimate"]]
    assert found == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) == len(expected)  # so that an estimate of another batch would be noticed
    assert line["estimate"]["value"] == pytest.approx(sum(expected) / 4, abs=1e-6)


def test_a_rehearsal_is_made_once_and_read_afterwards(
    folder: Path, run: RunPlan, source: SourceStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rehearsal_path(folder, rehearsed_cell(run))
    assert path.name.startswith(f"{run.model.key}.rehearsal-")
    assert path.is_file()
    monkeypatch.setattr(rehearsals, "rehearse", lambda *_, **__: pytest.fail("made again"))
    assert {line["status"] for line in run_cells(run, folder, summarise=False)[1]} == {"ok"}
    asking = run.without(k for k, cell in run.cells.items() if cell["tempering"] == "rehearsed")
    path.unlink()
    assert {line["status"] for line in run_cells(asking, folder, summarise=False)[1]} == {"ok"}  # not needed
    source.save(path)


def _cut(source: SourceStatistics, path: Path) -> None:
    source.save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flipped(source: SourceStatistics, path: Path) -> None:
    source.save(path)
    content = path.read_bytes()
    path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])


def _of_another_model(source: SourceStatistics, path: Path) -> None:
    replace(source, model_fingerprint="other").save(path)


def _without(source: SourceStatistics, path: Path) -> None:
    replace(source, rehearsals={}).save(path)


@pytest.mark.parametrize("damage", [_cut, _flipped, _of_another_model, _without])
def test_a_file_that_is_not_whole_or_not_of_this_model_is_made_anew(
    damage: Callable[[SourceStatistics, Path], None],
    folder: Path,
    run: RunPlan,
    source: SourceStatistics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, calls = rehearsal_path(folder, rehearsed_cell(run)), []

    def noted(*_: Any, **__: Any) -> SourceStatistics:
        calls.append(1)
        return source

    monkeypatch.setattr(rehearsals, "rehearse", noted)
    asking = run.without(key for key, cell in run.cells.items() if cell["tempering"] != "rehearsed")
    assert store_rehearsal(asking, folder) == ""
    assert calls == []
    damage(source, path)
    said = store_rehearsal(asking, folder)
    assert ("poise is rehearsed again" in said) == (damage in (_cut, _flipped))
    for _ in range(2):
        found = rehearsed_source(rehearsed_cell(run), run.model, model_of(run, folder), folder)
        assert found.rehearsal_of("poise").samples == 102
    assert len(calls) == 1
    assert [file for file in folder.iterdir() if file.name.endswith(".partial")] == []


def test_other_options_or_batches_are_another_rehearsal_and_a_seed_is_not(folder: Path, run: RunPlan) -> None:
    cell = rehearsed_cell(run)
    for change in (
        {"batch_size": 10},
        {"method": "norm", "options": {"norm_momentum": 0.1}},
        {"model": "other"},
        {"rehearsal": {"images": 2000, "shifts": 8}},
        {"options": {**cell["options"], "norm_momentum": 0.2}},
    ):
        other: Any = {**cell, **change}
        assert rehearsal_path(folder, other) != rehearsal_path(folder, cell)
    same: Any = {**cell, "protocol": "x", "stream": "x", "options": {**cell["options"], "norm_momentum": 0.1}}
    assert rehearsal_path(folder, same) == rehearsal_path(folder, cell)  # the default
    drawing: list[Any] = [{**cell, "method": "sotta", "options": {"seed": seed}} for seed in (1, 2)]
    assert rehearsal_path(folder, drawing[0]) == rehearsal_path(folder, drawing[1])


@pytest.mark.parametrize(
    ("method", "own", "learns_with_t"),
    [
        ("poise", {}, False),
        ("dec", {}, True),
        ("rdumb", {"base": "tent"}, False),
        ("rdumb", {"base": "dec"}, True),
    ],
)
def test_the_range_of_t_is_of_a_rehearsal_where_the_method_learns_with_it(
    method: str, own: dict[str, Any], learns_with_t: bool, folder: Path, run: RunPlan
) -> None:
    cells: list[Any] = [
        {**rehearsed_cell(run), "method": method, "options": {**own, "t_min": 1.0, "t_max": t_max}}
        for t_max in (2.0, 3.0)
    ]
    found = {rehearsal_path(folder, cell) for cell in cells}
    assert len(found) == (2 if learns_with_t else 1)


def test_too_few_held_out_images_fail_the_rehearsed_cells_alone(tmp_path: Path) -> None:
    run = made(tmp_path, limit=12)
    _, found = run_cells(run, tmp_path, summarise=False)
    assert len(found) == len(run.cells) == 14
    for line in found:
        if line["cell"]["tempering"] != "rehearsed":
            assert line["status"] == "ok", line["traceback"]
            continue
        assert line["status"] == "failed"
        assert "RehearsalError: expected at least 100 held-out images to rehearse poise with, got 6" in str(
            line["error"]
        )
        assert "--limit" in str(line["error"])
    again = run.without(line["key"] for line in found if line["status"] == "ok")
    assert [line["status"] for line in run_cells(again, tmp_path, summarise=False)[1]] == ["failed"] * 2


def test_a_sweep_makes_each_rehearsal_once_before_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_files: list[str] = []

    def noted(run: RunPlan, models: Path) -> str:
        made_files.append(rehearsal_path(models, run.any_cell).name)
        assert not (tmp_path / "out" / "results.jsonl").read_text()
        return store_rehearsal(run, models)

    monkeypatch.setattr(sweep, "store_rehearsal", noted)
    recipe = toy_recipe(
        data="many-targets",
        methods={"norm": {"batch_size": 20, "rehearsed": True}, "source": {"batch_size": 20}},
        temperings=["none", "rehearsed"],
        protocols=["online"],
    )
    _, said = go(recipe, tmp_path)
    assert len(made_files) == 1  # for two targets of one model
    assert "rehearsing smallcnn on plain, seed 0" in said
    found: dict[tuple[str, str, str], dict[str, Any]] = {
        (line["cell"]["label"], line["cell"]["tempering"], line["cell"]["target"]): {**line}
        for line in lines(tmp_path / "out")
    }
    assert {key: line["status"] for key, line in found.items()} == dict.fromkeys(found, "ok")
    assert {key[1] for key, line in found.items() if "oracle" in line} == {"none"}
    assert {key[:2] for key, line in found.items() if "estimate" in line} == {("norm", "rehearsed")}
    raw, rehearsed = found["norm", "none", "dark"], found["norm", "rehearsed", "dark"]
    assert raw["oracle"]["nll"] <= min(raw["scores"]["nll"], rehearsed["scores"]["nll"]) + 1e-6
    assert rehearsed["estimate"]["low"] <= rehearsed["estimate"]["value"] <= rehearsed["estimate"]["high"]


def test_streams_in_one_folder_share_models_and_rehearsals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, out = [], tmp_path / "out"

    def noted(*given: Any, **options: Any) -> SourceStatistics:
        calls.append(options["seed"])
        return eq.rehearse(*given, **options)

    def stream(order: str, seed: int, methods: dict[str, Any]) -> set[str]:
        """The models and rehearsals that this stream added to the folder."""
        there = set(out.glob("models/*"))
        recipe = toy_recipe(
            data="many-targets",
            order=order,
            batch_size=20,
            seeds=[seed],
            methods=methods,
            rehearsal={"images": 102, "shifts": 8},
            domain_images=20,
            order_options={"passes": 2} if order == "recurring" else {},
            temperings=["none", "rehearsed"],
            protocols=["online"],
        )
        assert not go(recipe, tmp_path)[0].failed
        return {path.name for path in set(out.glob("models/*")) - there}

    monkeypatch.setattr(rehearsals, "rehearse", noted)
    # Two labels of one method: a rehearsal of the same options, in the same batches, is the same.
    both: dict[str, Any] = {
        "norm": {"rehearsed": True, "batch_size": 7},
        "again": {"method": "norm", "rehearsed": True, "batch_size": 9},
    }
    assert len(stream("continual", 0, both)) == 2  # a model and its rehearsal
    for order in ("correlated", "recurring", "noisy"):
        assert stream(order, 0, both) == set()
    assert len(stream("continual", 1, both)) == 2
    assert calls == [0, 1]
    found = [line["cell"] for line in lines(out)]
    assert len(found) == 5 * 2 * 2
    assert [cell["seed"] for cell in found].count(0) == 16
    assert {cell["batch_size"] for cell in found} == {20}
