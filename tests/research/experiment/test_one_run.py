"""Cells: one run gives what each adapter by itself would have given."""

import gc
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.calibration.temper import SourceView, Temper, Tempering
from equipoise.evaluation import Answers
from equipoise.research.data import Cache, Images, Reader, make_image_stream, read_stored
from equipoise.research.experiment import one_run, scores
from equipoise.research.experiment.one_run import TAU_EDGES, run_cells, summarise_stream
from equipoise.research.experiment.plan import RunPlan, make_plan
from equipoise.research.experiment.schema import CellResult, CellScores, ReliabilitySums
from equipoise.research.experiment.scores import Divider
from equipoise.research.experiment.training import train_source_model

from .toy import Toy, ToyTiers, byhand, model_of, toy_images, toy_recipe, trained_runs

METHODS = ("source", "norm", "tent", "eta", "eata", "t3a", "sotta", "dec", "poise")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cells")


def runs_of(folder: Path, **changes: Any) -> list[RunPlan]:
    recipe = toy_recipe(**changes)
    return trained_runs(recipe, (ToyTiers if recipe.data == "toy-tiers" else Toy)(folder), folder)


def results(run: RunPlan, folder: Path) -> list[CellResult]:
    return run_cells(run, folder, summarise=False)[1]


def stream(run: RunPlan) -> Images:
    images = toy_images(run.any_cell["target"])
    return images.select(make_image_stream([images.labels], "shuffled", run.any_cell["seed"]).rows)


def adapter_options(run: RunPlan, tempering: str) -> dict[str, Any]:
    """The options of an adapter that does what the run does; t has a range where tau or a loss needs it."""
    options = {**run.any_cell["options"], "tempering": tempering}
    learns_with_t = "dec" in (run.any_cell["method"], options.get("base"))
    left_out = ("t_min", "t_max") if tempering == "none" and not learns_with_t else ()
    return {name: value for name, value in options.items() if name not in left_out}


@pytest.mark.parametrize(
    ("method", "options"),
    [*((method, {}) for method in METHODS), ("rdumb", {"base": "dec", "options": {"learning_rate": 1e-4}})],
)
def test_a_run_gives_what_each_adapter_would(method: str, options: dict[str, Any], folder: Path) -> None:
    run = runs_of(folder, methods={method: {"batch_size": 16, "options": options}})[1]
    found, images = model_of(run, folder), stream(run)
    lines = results(run, folder)
    assert [line["status"] for line in lines] == ["ok"] * 12, lines[0]["traceback"]
    by_way: dict[tuple[str, str], CellResult] = {
        (line["cell"]["tempering"], line["cell"]["protocol"]): line for line in lines
    }
    batches = images.pixels.float().split(16)
    for tempering in dict.fromkeys(kind for kind, _ in by_way):
        kind, fixed = ("none", found.fixed_tau) if tempering == "fixed" else (tempering, 1.0)
        adapter = eq.create(method, found.model, found.source, **adapter_options(run, kind))
        online = torch.cat([adapter(x) for x in batches]) / fixed
        after = torch.cat([adapter.predict(x) for x in batches]) / fixed
        for protocol, answers in (("online", online), ("after-pass", after)):
            line = by_way[tempering, protocol]
            scores = byhand(answers, images.labels)
            assert line["scores"] == pytest.approx(scores, abs=2e-4), (protocol, tempering)
            assert (line["images"], line["classes"], line["left_out"]) == (40, 3, 0)


def test_answers_of_one_tempering_are_held_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, held, real = runs_of(folder, methods={"norm": {"batch_size": 16}})[1], [], scores.score

    def watched(logits: torch.Tensor, labels: torch.Tensor) -> Any:
        alive = [each for each in gc.get_objects() if type(each) is torch.Tensor]
        rows = {t.data_ptr(): len(t) for t in alive if t.ndim == 2 and t.shape[1] == 3 and len(t) <= 40}
        held.append(sum(rows.values()))
        return real(logits, labels)

    gc.collect()
    monkeypatch.setattr(one_run, "score", watched)
    lines = results(run, folder)
    assert lines[0]["status"] == "ok", lines[0]["traceback"]
    # Those of the source model, of both passes, and of one tempering batch by batch and joined.
    assert len(held) == 12
    assert max(held) < 6 * 40


def test_reliability_adds_up(folder: Path) -> None:
    run = runs_of(folder)[0]
    for line in results(run, folder):
        bins, scores = line["reliability"], line["scores"]
        assert bins is not None
        assert scores is not None
        assert len(bins["count"]) == len(bins["confidence"]) == len(bins["correct"]) == 15
        assert sum(bins["count"]) == 40
        assert sum(bins["correct"]) == round(40 * scores["accuracy"])
        gaps = [abs(c - h) for c, h in zip(bins["confidence"], bins["correct"], strict=True)]
        assert sum(gaps) / 40 == pytest.approx(scores["ece"], abs=1e-5)


def test_only_the_cells_that_are_missing_are_made(folder: Path) -> None:
    run = runs_of(folder)[2]
    key, cell = list(run.cells.items())[7]
    whole = {line["key"]: line["scores"] for line in results(run, folder)}
    _, (line,) = run_cells(run.without(set(run.cells) - {key}), folder, summarise=False)
    assert (line["key"], line["cell"]) == (key, cell)
    assert line["scores"] == whole[key]


def test_a_stream_is_described_by_its_source_logits(folder: Path) -> None:
    run = runs_of(folder)[0]
    found, images = model_of(run, folder), stream(run)
    line, _ = run_cells(run, folder, summarise=True)
    assert line is not None
    with torch.no_grad():
        logits = found.model(images.pixels.float()).double()
    norms = logits.square().sum(1).sqrt()
    probs = logits.softmax(1)
    entropy = -(probs * probs.log2()).sum(1)
    h = torch.sigmoid((entropy - found.source.h0) / math.sqrt(math.log2(3)))
    tau = (1.2 + h * (2.75 - 1.2)) * found.source.kappa / norms
    assert line["norms"] == pytest.approx(
        torch.quantile(norms, torch.tensor(line["levels"]).double()).tolist(), rel=1e-4
    )
    assert line["taus"] == pytest.approx(
        torch.quantile(tau, torch.tensor(line["levels"]).double()).tolist(), rel=1e-4
    )
    moments = [line["norm_mean"], line["norm_std"], line["tau_mean"], line["tau_std"]]
    assert moments == pytest.approx(
        [float(v) for v in (norms.mean(), norms.std(correction=0), tau.mean(), tau.std(correction=0))],
        rel=1e-4,
    )
    assert (line["h0"], line["kappa"], line["fixed_tau"]) == (
        found.source.h0,
        found.source.kappa,
        found.fixed_tau,
    )
    inside = [((tau >= a) & (tau < b)).sum() for a, b in pairwise(TAU_EDGES)]
    expected = [int(n) for n in inside]
    expected[0] += int((tau < TAU_EDGES[0]).sum())
    expected[-1] += int((tau >= TAU_EDGES[-1]).sum())
    assert line["tau_counts"] == expected
    assert sum(line["tau_counts"]) == line["images"] == 40
    assert run_cells(run, folder, summarise=False)[0] is None


def test_a_failing_method_gives_lines_with_its_traceback(folder: Path) -> None:
    run = runs_of(folder, methods={"t3a": {"options": {"head": "no.such.layer"}}})[0]
    stream_line, lines = run_cells(run, folder, summarise=True)
    assert stream_line is not None  # the stream was looked at before the method failed
    assert len(lines) == 12
    for line in lines:
        assert line["status"] == "failed"
        assert line["scores"] is None
        assert "no.such.layer" in str(line["error"])
        assert "Traceback (most recent call last)" in str(line["traceback"])


def test_a_missing_model_is_a_failure_not_a_crash(folder: Path, tmp_path: Path) -> None:
    _, lines = run_cells(runs_of(folder)[0], tmp_path, summarise=False)
    assert {line["status"] for line in lines} == {"failed"}


def test_orders_of_the_stream_are_those_asked_for(folder: Path) -> None:
    accuracies = {}
    for order in ("shuffled", "sorted"):
        run = runs_of(folder, order=order, methods={"tent": {"batch_size": 16}})[1]
        accuracies[order] = results(run, folder)[0]["scores"]
    assert accuracies["shuffled"] != accuracies["sorted"]
    run = runs_of(folder, data="toy-tiers", order="continual", methods={"source": {"batch_size": 16}})[0]
    line = results(run, folder)[0]
    assert line["images"] == 80
    parts = [read_stored(path) for path in run.streams]
    found = model_of(run, folder)
    logits = [found.model(part.pixels.float()) for part in parts]
    assert line["scores"] == pytest.approx(
        byhand(torch.cat(logits), torch.cat([part.labels for part in parts])), abs=2e-4
    )


def test_a_stream_of_one_image_has_a_result(tmp_path: Path) -> None:
    cache, data = Cache(tmp_path / "cache"), Toy(tmp_path)
    stored = {part: cache.store(data, part, 2 if part != "dark" else 1, Reader()) for part in data.parts}
    recipe = toy_recipe()
    run = make_plan(recipe, data, data.shifts, stored, {"smallcnn": None}, 1)[3]
    assert run.any_cell["target"] == "dark"
    train_source_model(run.model, tmp_path)
    line, lines = run_cells(run, tmp_path, summarise=True)
    assert {each["status"] for each in lines} == {"ok"}
    assert line is not None
    assert (line["images"], line["norm_std"], line["tau_std"]) == (1, 0.0, 0.0)


def test_a_method_that_draws_random_numbers_gives_the_same_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs_of(folder, methods={"source": {"batch_size": 16}})[0]

    class Noisy(torch.nn.Module):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.randn(len(images), 3)

        predict, weight_distance = forward, 0.0

    monkeypatch.setattr("equipoise.research.experiment.one_run.create", Noisy)
    torch.manual_seed(0)
    first = results(run, folder)
    second = results(run, folder)
    assert {line["status"] for line in first} == {"ok"}
    assert [line["scores"] for line in first] == [line["scores"] for line in second]


def test_answers_that_are_no_numbers_are_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs_of(folder)[0]
    real = scores.score

    def score(logits: torch.Tensor, labels: torch.Tensor) -> tuple[CellScores, ReliabilitySums]:
        scores, bins = real(logits, labels)
        return {**scores, "nll": float("inf")}, bins

    monkeypatch.setattr("equipoise.research.experiment.one_run.score", score)
    lines = results(run, folder)
    assert {line["status"] for line in lines} == {"failed"}


def test_the_seed_orders_the_stream_and_its_line_says_what_it_is_of(folder: Path) -> None:
    run = runs_of(folder, seeds=[3], methods={"norm": {"batch_size": 4}})[1]
    found, images = model_of(run, folder), stream(run)
    about, lines = run_cells(run, folder, summarise=True)
    adapter = eq.create("norm", found.model, found.source, **adapter_options(run, "none"))
    online = torch.cat([adapter(x) for x in images.pixels.float().split(4)])
    (line,) = [
        line for line in lines if (line["cell"]["protocol"], line["cell"]["tempering"]) == ("online", "none")
    ]
    assert line["scores"] == pytest.approx(byhand(online, images.labels), abs=2e-4)
    assert about is not None
    of_cell, of_stream = dict(line["cell"]), dict(about)
    shared = of_cell.keys() & of_stream.keys()
    assert shared >= {"data", "backbone", "target", "tier", "seed", "limit", "epochs", "order", "origin"}
    assert {name: of_stream[name] for name in shared} == {name: of_cell[name] for name in shared}
    assert (about["key"], about["t_min"], about["t_max"]) == (run.stream_key, 1.2, 2.75)


def test_images_without_a_tau_have_no_say_in_it(folder: Path) -> None:
    run = runs_of(folder)[0]
    found = model_of(run, folder)
    logits = torch.tensor([[3.0, 0, 1], [0, 0, 0], [1, 2, 5]])  # tau is infinite where all are zero
    line = summarise_stream(run, found, logits)
    others = summarise_stream(run, found, logits[::2])
    assert line["images"] == 3
    for name in ("taus", "tau_mean", "tau_std", "tau_counts"):
        assert line[name] == others[name], name


def test_the_running_temperature_leaves_out_what_has_no_tau() -> None:
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    ones = torch.ones(3)
    kind: Tempering
    for kind, expected, near in (("mean", logits / 2, None), ("median", logits, 0.01)):  # the lower middle
        divider = Divider(Temper(kind, SourceStatistics(0.5, 1.0, 3), 1.0, 3.0))
        divider.online(Answers(logits), SourceView(logits, ones, torch.tensor([1.0, torch.inf, 3.0])))
        answers = divider.after_pass(Answers(logits), SourceView(logits, ones, ones))
        torch.testing.assert_close(answers, expected, rtol=near, atol=near)


def test_the_cells_share_the_time_of_their_run(folder: Path) -> None:
    run = runs_of(folder)[0]
    started = time.perf_counter()
    lines = results(run, folder)
    elapsed = time.perf_counter() - started
    assert 0 < sum(line["made"]["seconds"] for line in lines) <= elapsed + 1e-4 * len(lines)


def test_the_histogram_of_tau_goes_from_a_quarter_to_128() -> None:
    assert (TAU_EDGES[0], TAU_EDGES[-1], len(TAU_EDGES)) == (0.25, 128, 37)
