"""`equipoise run` as a program: one's own data set and method, kills, Ctrl-C, failures, resuming."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from tests.support.waiting import HANG, wait_until

from .own import CELLS, RECIPE, command, run, run_here, write_own
from .toy import lines, scores


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one seed in one process, never interrupted."""
    folder = tmp_path_factory.mktemp("reference")
    run(f"run {write_own(folder)} --out {folder}/out --workers 1 --seeds 0")
    return folder / "out"


def test_a_data_set_and_a_method_of_ones_own_are_a_file_each(reference: Path) -> None:
    found = lines(reference)
    assert len(scores(reference)) == len(found) == CELLS // 2
    assert {line["status"] for line in found} == {"ok"}
    assert {line["cell"]["label"] for line in found} == {"source", "mine", "dec"}
    assert {line["cell"]["data"] for line in found} == {"bars"}
    assert {line["cell"]["protocol"] for line in found} == {"online", "after-pass"}
    assert len((reference / "streams.jsonl").read_text().splitlines()) == 2
    assert len(list((reference / "models").iterdir())) == 2


def test_the_same_again_does_nothing(reference: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in reference.rglob("*.*") if path.name != ".lock"}
    done = run_here(f"run {write_own(reference.parent)} --out {reference} --workers 1 --seeds 0")
    assert f"({CELLS // 2} were there before)" in done.output
    assert "training" not in done.output
    assert {path: path.stat().st_mtime_ns for path in before} == before


def has_lines(path: Path, count: int) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") >= count


@pytest.mark.slow  # an interrupt in mid-run and a store cut short have faster tests
def test_killed_twice_and_resumed_has_every_cell_once_and_the_same(reference: Path, tmp_path: Path) -> None:
    recipe, out = write_own(tmp_path), tmp_path / "out"
    for cells in (1, CELLS // 3):
        process = subprocess.Popen(
            command(f"run {recipe} --out {out} --workers 2 --seeds 0"),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until(partial(has_lines, out / "results.jsonl", cells), "results")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert 0 < len(scores(out)) < CELLS // 2
    run(f"run {recipe} --out {out} --workers 2 --seeds 0")
    assert scores(out) == scores(reference)  # bit for bit, with another number of workers
    assert not list((out / "models").glob("*.partial*"))


def test_ctrl_c_says_how_to_go_on_and_leaves_a_store_that_does(tmp_path: Path) -> None:
    slow = RECIPE.replace("mine: {batch_size: 20}", "mine: {batch_size: 5, options: {pause: 3}}")
    recipe, out = write_own(tmp_path, slow), tmp_path / "out"
    process = subprocess.Popen(
        command(f"run {recipe} --out {out} --workers 2 --seeds 0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until((out / "results.jsonl").exists, "the first result")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert "the same command goes on from there" in errors
    assert "Traceback" not in errors
    assert 0 < len(scores(out)) < CELLS // 2
    quick = write_own(tmp_path, slow.replace("pause: 3", "pause: 0"))
    run(f"run {quick} --out {out} --seeds 0 --methods source,dec")
    assert {line["status"] for line in lines(out)} == {"ok"}


def test_a_failing_method_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    unlucky = RECIPE.replace("mine: {batch_size: 20}", "mine: {batch_size: 20, options: {weight: 13}}")
    recipe, out = write_own(tmp_path, unlucky), tmp_path / "out"
    line = f"run {recipe} --out {out} --seeds 0 --targets dark --workers 1"
    done = run_here(line)
    assert done.exit_code == 1
    assert "thirteen is unlucky" in done.output
    found = lines(out)
    assert len(scores(out)) == CELLS // 4
    assert {line["status"] for line in found if line["cell"]["label"] == "mine"} == {"failed"}
    assert {line["status"] for line in found if line["cell"]["label"] != "mine"} == {"ok"}
    failure = next(line for line in found if line["status"] == "failed")
    assert "thirteen is unlucky" in str(failure["error"])
    assert "mine.py" in str(failure["traceback"])
    again = run_here(line)  # they are tried again
    assert again.exit_code == 1
    assert len(scores(out)) == CELLS // 4


def test_a_model_that_cannot_be_trained_fails_its_cells_only(tmp_path: Path) -> None:
    two = RECIPE.replace(
        "  smallcnn: {weights: random}",
        "  smallcnn: {weights: random}\n  vit_tiny_patch16_224: {weights: random}",
    )
    recipe, out = write_own(tmp_path, two), tmp_path / "out"
    few = "--seeds 0 --targets dark --methods source --tempering none --workers 1"
    done = run_here(f"run {recipe} --out {out} {few}")
    assert done.exit_code == 1
    status = {line["cell"]["backbone"]: line["status"] for line in lines(out)}
    assert status == {"smallcnn": "ok", "vit_tiny_patch16_224": "failed"}  # made for 224 pixels


def test_less_of_a_recipe(tmp_path: Path) -> None:
    recipe, out = write_own(tmp_path), tmp_path / "out"
    less = "--methods source,norm --seeds=1 --limit 30 --targets dark --tempering none,median --epochs 2"
    run_here(f"run {recipe} --out {out} --workers 1 {less}")
    found = [line["cell"] for line in lines(out)]
    assert len(found) == 2 * 2 * 2
    assert {cell["label"] for cell in found} == {"source", "norm"}
    assert {cell["tempering"] for cell in found} == {"none", "median"}
    assert {(cell["seed"], cell["target"], cell["epochs"], cell["limit"]) for cell in found} == {
        (1, "dark", 2, 30)
    }
    assert {line["images"] for line in lines(out)} == {30}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("nothing", "no recipe 'nothing'; there are abrupt, changing, continual, correlated"),
        ("demo --methods magic", "no method 'magic'"),
        ("demo --targets moon", "no target 'moon'; there are "),
        ("demo --backbones resnet5000", "no network 'resnet5000'"),
        ("demo --tempering warm", "'none', 'mean', 'median', 'sample', 'agreement', 'rehearsed' or 'fixed'"),
        ("demo --address auto", "expected --engine ray"),
        ("pacs --data /nowhere", "PACS"),
        ("demo --limit 0", "--limit"),
    ],
)
def test_mistakes_are_told_in_a_line_or_two(arguments: str, said: str, tmp_path: Path) -> None:
    result = run_here(f"run {arguments} --out {tmp_path}/out")
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_bad_files_of_all_parts_are_named_at_once(tmp_path: Path) -> None:
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        for name in ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"):
            (tmp_path / "pacs" / domain / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "pacs" / domain / name / "1.jpg")
    for domain in ("cartoon", "sketch"):
        (tmp_path / "pacs" / domain / "dog" / "1.jpg").write_bytes(b"not an image")
    result = run_here(f"run pacs --data {tmp_path} --out {tmp_path}/out --workers 1")
    assert result.exit_code == 1
    for domain in ("cartoon", "sketch"):
        assert f"{domain}/dog/1.jpg" in result.output
    assert "--skip-bad-files" in result.output
    assert not (tmp_path / "out" / "results.jsonl").exists()
