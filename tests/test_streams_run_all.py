"""The program that runs the whole comparison of streams: its jobs, their order, and a small trial."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import run_all
from run_all import SUBJECTS, Job, all_jobs, run

from equipoise.bench.recipe import load_recipe

ROOT = Path(__file__).parent.parent


def job(folder: Path, name: str, code: str, after: Job | None = None) -> Job:
    return Job(name, [sys.executable, "-c", code], folder / name, after)


def test_a_job_runs_after_the_one_before_it_and_takes_its_models(tmp_path: Path) -> None:
    first = job(
        tmp_path,
        "first",
        f"import pathlib; p = pathlib.Path({str(tmp_path)!r}, 'first', 'models'); p.mkdir(parents=True); "
        "(p / 'a.safetensors').touch(); (p / '.b.safetensors').touch()",
    )
    second = job(tmp_path, "second", "print('ran')", first)
    assert run([second, first], 2) == 0
    assert (tmp_path / "second.log").read_text() == "ran\n"
    assert [path.name for path in (tmp_path / "second" / "models").iterdir()] == ["a.safetensors"]


def test_a_failed_training_fails_the_jobs_after_it_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = job(tmp_path, "first", "raise SystemExit(3)")
    alone = job(tmp_path, "alone", "pass")
    assert run([first, job(tmp_path, "second", "pass", first), alone], 2) == 2
    said = capsys.readouterr().out
    assert "first: failed, see its log" in said
    assert "second: not run, as first failed" in said
    assert alone.failed is False


def test_a_failed_run_stops_no_other(tmp_path: Path) -> None:
    training = job(tmp_path, "training", "pass")
    raw = job(tmp_path, "raw", "raise SystemExit(3)", training)
    last = job(tmp_path, "last", "pass", raw)
    assert run([training, raw, last], 1) == 1
    assert last.failed is False


class Recorded(Job):
    """A job that keeps its process."""

    process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        self.process = super().start()
        return self.process


def test_an_error_leaves_no_run_behind(tmp_path: Path) -> None:
    endless = Recorded(
        "endless", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "endless"
    )
    with pytest.raises(FileNotFoundError):
        run([endless, Job("broken", ["/no/such/program"], tmp_path / "broken")], 2)
    assert endless.process is not None
    assert endless.process.poll() is not None


def test_runs_without_tempering_come_before_all_rehearsals(tmp_path: Path) -> None:
    jobs = all_jobs(SUBJECTS, tmp_path, tmp_path, ["source", "norm"])
    kinds = [one.name.partition("-")[0] for one in jobs]
    assert kinds == sorted(kinds, key=["train", "raw", "rehearsed"].index)
    assert len({one.name for one in jobs}) == len(jobs)
    for one in jobs:
        if one.name.startswith("rehearsed") and "continual" not in one.name:
            assert one.after is not None
            assert one.after.name.startswith("rehearsed")
            assert one.after.name.endswith("continual")


def test_recipes_have_all_the_methods() -> None:
    for subject in (subject for subject in SUBJECTS if subject.name != "demo"):
        for stream in subject.images:
            recipe = load_recipe(stream, subject.on)
            recipe.narrowed(methods=run_all.METHODS, backbones=[subject.backbone]).check_methods()


@pytest.mark.slow
def test_a_small_trial_gives_both_temperings_of_both_streams(tmp_path: Path) -> None:
    program = ROOT / "benchmarks" / "streams" / "run_all.py"
    given = ["--data-sets", "demo", "--methods", "source", "norm", "--processes", "2"]
    subprocess.run([sys.executable, str(program), str(tmp_path), str(tmp_path / "out"), *given], check=True)
    met = set()
    for path in (tmp_path / "out").glob("*/results.jsonl"):
        for line in path.read_text().splitlines():
            cell = json.loads(line)["cell"]
            met.add((cell["order"], cell["label"], cell["tempering"]))
    assert len(met) == 8
    made = {path.name for path in (tmp_path / "out").glob("*/models/*rehearsal*")}
    assert len(made) == 2  # one of each method, shared by both streams
