"""The program that runs the whole comparison of streams: its jobs, their order, and a small trial."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.streams import run_all
from benchmarks.streams.run_all import SUBJECTS, Job, all_jobs, run
from equipoise.research.experiment.recipe import load_recipe

ROOT = Path(__file__).parents[2]


def job(folder: Path, name: str, code: str, after: Job | None = None, *, trains: bool = False) -> Job:
    return Job(name, [sys.executable, "-c", code], folder / name, after, trains=trains)


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
    first = job(tmp_path, "first", "raise SystemExit(3)", trains=True)
    alone = job(tmp_path, "alone", "pass")
    assert run([first, job(tmp_path, "second", "pass", first), alone], 2) == 2
    said = capsys.readouterr().out
    assert "first: failed, see its log" in said
    assert "second: not run, as first failed" in said
    assert alone.failed is False


def test_a_training_is_tried_even_if_the_one_that_reads_for_it_failed(tmp_path: Path) -> None:
    first = job(tmp_path, "first", "raise SystemExit(3)", trains=True)
    second = job(tmp_path, "second", "pass", first, trains=True)
    assert run([first, second], 2) == 1
    assert second.failed is False


def test_a_failed_run_stops_no_other(tmp_path: Path) -> None:
    training = job(tmp_path, "training", "pass", trains=True)
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


def test_an_error_leaves_no_run_behind_where_ctrl_c_is_ignored(tmp_path: Path) -> None:
    endless = Recorded(
        "endless", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "endless"
    )
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in what a script started with `&`
    try:
        with pytest.raises(FileNotFoundError):
            run([endless, Job("broken", ["/no/such/program"], tmp_path / "broken")], 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert endless.process is not None
    assert endless.process.poll() is not None


def test_a_job_of_many_processes_waits_for_them(tmp_path: Path) -> None:
    wide = Job("wide", [sys.executable, "-c", "pass"], tmp_path / "wide", workers=4)
    assert run_all._fits(wide, [], 2)  # alone it is run on any number
    other = job(tmp_path, "other", "pass")
    assert not run_all._fits(wide, [other], 4)
    assert run_all._fits(wide, [other], 5)
    assert not run_all._fits(Job("same", [], tmp_path / "other"), [other], 5)


def test_trainings_come_first_and_memo_last(tmp_path: Path) -> None:
    jobs = all_jobs(SUBJECTS, tmp_path, tmp_path, ["source", "norm", "memo"])
    kinds = [one.name.partition("-")[0] for one in jobs]
    assert kinds == sorted(kinds, key=["train", "run", "memo"].index)
    assert len({one.name for one in jobs}) == len(jobs)
    asked = {one.name: one for one in jobs}
    assert "source,norm" in asked["run-pacs-1-photo-noisy"].command
    assert "none" in asked["run-pacs-1-photo-noisy"].command
    assert "none,rehearsed" in asked["run-pacs-0-photo-noisy"].command
    for name, after in {
        "train-pacs-2-photo-continual": "train-pacs-0-photo-continual",
        "run-pacs-2-photo-continual": "train-pacs-2-photo-continual",
        "run-pacs-2-photo-noisy": "train-pacs-2-photo-continual",
        "run-pacs-0-photo-noisy": "run-pacs-0-photo-continual",
        "memo-pacs-2-photo-continual": "train-pacs-2-photo-continual",
    }.items():
        before = asked[name].after
        assert before is not None
        assert before.name == after


def test_recipes_have_all_the_methods() -> None:
    for subject in (subject for subject in SUBJECTS if subject.name != "demo"):
        for stream in subject.images:
            recipe = load_recipe(stream, subject.on)
            recipe.narrowed(methods=run_all.METHODS, backbones=[subject.backbone]).check_methods()


@pytest.mark.slow
def test_a_small_trial_gives_both_temperings_of_both_streams(tmp_path: Path) -> None:
    given = ["--data-sets", "demo", "--methods", "source", "norm", "--processes", "2"]
    command = [
        sys.executable,
        "-m",
        "benchmarks.streams.run_all",
        str(tmp_path),
        str(tmp_path / "out"),
        *given,
    ]
    subprocess.run(command, check=True, cwd=ROOT)
    met = set()
    for path in (tmp_path / "out").glob("*/results.jsonl"):
        for line in path.read_text().splitlines():
            cell = json.loads(line)["cell"]
            met.add((cell["order"], cell["label"], cell["tempering"]))
    assert len(met) == 8
    made = {path.name for path in (tmp_path / "out").glob("*/models/*rehearsal*")}
    assert len(made) == 2  # one of each method, shared by both streams
