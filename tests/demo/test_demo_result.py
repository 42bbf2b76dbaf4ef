"""The demo as a newcomer runs it: it must work, be quick, and show what the README promises."""

import io
import json
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

import equipoise as eq
from equipoise.demo import run_demo
from equipoise.demo.experiment import stage_count
from equipoise.demo.results import DemoResults, MethodResult, pairs

FULL_DEMO_SECONDS = 180


def run(out: Path, *, quick: bool) -> DemoResults:
    run_demo(out, quick=quick, console=Console(file=io.StringIO()))
    results: DemoResults = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return results


def row(results: DemoResults, label: str) -> MethodResult:
    (found,) = [method for method in results["methods"] if method["label"] == label]
    return found


def assert_poise_is_better_calibrated(results: DemoResults) -> None:
    before, after = row(results, "no adaptation")["mean"], row(results, "poise")["mean"]
    assert after["ece"] < before["ece"]
    assert after["nll"] < before["nll"]


@pytest.fixture(scope="module")
def quick_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the printed text of one quick run, which must leave the global random numbers alone."""
    out = tmp_path_factory.mktemp("demo")
    text = io.StringIO()
    before = torch.random.get_rng_state()
    assert run_demo(out, quick=True, console=Console(file=text, width=120)) == out / "index.html"
    assert torch.equal(torch.random.get_rng_state(), before)
    return out, text.getvalue()


@pytest.fixture(scope="module")
def quick_results(quick_demo: tuple[Path, str]) -> DemoResults:
    results: DemoResults = json.loads((quick_demo[0] / "results.json").read_text(encoding="utf-8"))
    return results


def test_poise_is_better_calibrated_than_no_adaptation(quick_results: DemoResults) -> None:
    assert_poise_is_better_calibrated(quick_results)


def test_every_method_is_scored_on_every_domain(quick_results: DemoResults) -> None:
    for method in quick_results["methods"]:
        assert list(method["domains"]) == quick_results["domains"]
        for scores in method["domains"].values():
            assert 0 <= scores["accuracy"] <= 1
            assert 0 <= scores["ece"] <= 1
            assert sum(scores["reliability"]["count"]) == quick_results["images_per_domain"]


def test_every_method_is_there_raw_and_tempered(quick_results: DemoResults) -> None:
    found = {(method["method"], method["tempering"]) for method in quick_results["methods"]}
    both = {(name, tempering) for name in eq.list_methods() for tempering in ("none", "median")}
    assert found == both | {("dec", "mean"), ("poise", "rehearsed")}
    assert len(found) == len(quick_results["methods"])


def test_labels_say_what_differs_from_the_defaults(quick_results: DemoResults) -> None:
    labels = {(m["method"], m["tempering"]): m["label"] for m in quick_results["methods"]}
    assert labels["source", "none"] == quick_results["methods"][0]["label"] == "no adaptation"
    assert labels["source", "median"] == "no adaptation (median)"
    assert (labels["tent", "none"], labels["tent", "median"]) == ("tent", "tent (median)")
    for name, own in {"dec": "mean", "poise": "rehearsed"}.items():
        found = [labels[name, tempering] for tempering in ("none", own, "median")]
        assert found == [f"{name} (raw)", name, f"{name} (median)"]
    assert row(quick_results, "sotta")["options"] == {"confidence": 0.33}
    assert row(quick_results, "eata (median)")["options"] == {"epsilon": 0.4, "fisher_alpha": 1.0}


def test_tempering_leaves_the_accuracy_and_changes_the_rest(quick_results: DemoResults) -> None:
    for pair in pairs(quick_results):
        for domain in quick_results["domains"]:
            raw, tempered = pair.scores(domain)
            assert raw["accuracy"] == tempered["accuracy"]
            # A rehearsal may find that answers are honest as they are.
            assert raw["nll"] != tempered["nll"] or pair.tempered["tempering"] == "rehearsed"
        assert pair.raw["mean"]["nll"] != pair.tempered["mean"]["nll"]


def test_poise_estimates_its_accuracy_on_every_domain(quick_results: DemoResults) -> None:
    rehearsal = quick_results["rehearsal"]
    assert (rehearsal["method"], rehearsal["images"]) == ("poise", 150)
    assert list(rehearsal["estimates"]) == quick_results["domains"]
    for estimate in rehearsal["estimates"].values():
        assert 0 < estimate["low"] < estimate["value"] < estimate["high"] < 1


def test_the_file_says_how_it_was_made(quick_results: DemoResults) -> None:
    assert quick_results["schema"] == 3
    assert quick_results["equipoise"] == eq.__version__
    assert quick_results["torch"] == torch.__version__
    assert (quick_results["seed"], quick_results["quick"], quick_results["protocol"]) == (0, True, "online")


def test_only_the_two_files_are_left(quick_demo: tuple[Path, str]) -> None:
    out, _ = quick_demo
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "results.json"]


def test_the_printed_text_has_stages_and_results(quick_demo: tuple[Path, str]) -> None:
    _, text = quick_demo
    assert "mnist held out: training on optical and rendered" in text
    stages = [line for line in text.splitlines() if " held out: " in line]
    assert len(stages) == len(set(stages)) == stage_count()
    assert "mnist held out: rehearsing poise on 150 images kept aside" in text
    assert "What poise estimated its accuracy to be" in text
    assert "poise was rehearsed before the stream: on 150 labelled source images" in " ".join(text.split())
    assert "sotta has confidence=0.33" in " ".join(text.split())
    assert "protocol: online" in text
    assert "★" in text
    assert "no adaptation" in text
    assert "index.html" in text
    assert "\x1b[" not in text


@pytest.mark.slow
def test_the_full_demo_shows_the_same_in_time(tmp_path: Path) -> None:
    started = time.perf_counter()
    results = run(tmp_path, quick=False)
    assert time.perf_counter() - started < FULL_DEMO_SECONDS
    assert_poise_is_better_calibrated(results)


@pytest.mark.slow
def test_same_seed_same_numbers(tmp_path: Path, quick_results: DemoResults) -> None:
    again = run(tmp_path, quick=True)
    assert again["methods"] == quick_results["methods"]
