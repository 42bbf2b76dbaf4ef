"""Runs everything behind the comparison of docs/streams.md, many runs at a time on one GPU.

    python -m benchmarks.streams.run_all DATA OUT --processes 14

trains the source models, then runs each method over every stream, with its rehearsal, and memo last. Each
target, seed and stream has a folder of its own in OUT, which `pack_streams.py OUT/*/` reads, and a log. Run
the same command again after Ctrl-C: it does only what is missing. `--data-sets demo --methods source norm` is
a small trial without downloads.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from equipoise.research.experiment.schema import RAW, REHEARSED
from equipoise.research.experiment.store import CACHE, MODELS

HERE = Path(__file__).parent
OFTEN = 0.2
"""Seconds between two looks at the runs."""
METHODS = (
    *("source", "norm", "poise", "tent", "t3a", "lame", "bn_alpha", "bn_ema", "foa_shift", "eta", "rdumb"),
    *("roid", "roid-prior", "cmf", "sar", "deyo", "poem", "pseudo_label", "shot_im", "dec", "tent-come"),
    *("eata", "sar-come", "sotta", "rotta", "petta", "cotta", "memo"),
)
"""The cheap ones first."""
ALONE = "memo"
"""It answers each image by itself, so that no order matters to it, and takes minutes for a stream."""


@dataclass(frozen=True)
class Subject:
    """A data set with a network: its models, and the images of each domain in every kind of stream.

    `workers` are the processes of one run.
    """

    name: str
    on: str
    backbone: str
    seeds: Sequence[int]
    targets: Sequence[str]
    images: Mapping[str, int]
    rehearsed_seeds: Sequence[int] = (0, 1, 2)
    workers: int = 1
    more: Sequence[str] = ()


SUBJECTS = (
    Subject(
        "tiny-imagenet-c",
        str(HERE / "recipes" / "tiny-imagenet-c.yaml"),
        "mobilenet_v1",
        seeds=(0,),
        targets=("",),
        images={"continual": 300, "noisy": 300, "correlated": 600, "recurring": 32},
        workers=4,
        more=("--tiers", "3,5"),
    ),
    Subject(
        "digits",
        "digits",
        "smallcnn",
        seeds=(0, 1, 2),
        targets=("mnist", "usps", "svhn"),
        images={"continual": 500, "noisy": 500, "correlated": 500, "recurring": 32},
    ),
    Subject(
        "pacs",
        str(HERE / "recipes" / "pacs.yaml"),
        "mobilenet_v1",
        seeds=(0, 1, 2),
        targets=("art_painting", "cartoon", "photo", "sketch"),
        images={"continual": 128, "noisy": 128, "correlated": 192, "recurring": 16},
        rehearsed_seeds=(0,),
    ),
    Subject(
        "demo",
        "demo",
        "smallcnn",
        seeds=(0,),
        targets=("mnist",),
        images={"continual": 8, "correlated": 8},
        more=("--epochs", "1"),
    ),
)


@dataclass(eq=False)
class Job:
    """A run of `equipoise`, and the job that must end before it, whose models and images it takes.

    `workers` are its processes; `trains` says that it trains a model, without which no other job can be run.
    """

    name: str
    command: Sequence[str]
    folder: Path
    after: "Job | None" = None
    workers: int = 1
    trains: bool = False
    failed: bool | None = None
    """None before its end."""

    def start(self) -> subprocess.Popen[bytes]:
        """Link the files of the job before into the folder, and start the run with a log of its own."""
        if self.after is not None and self.after.folder != self.folder:
            for part in (MODELS, CACHE):
                link(self.after.folder / part, self.folder / part)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder.parent / f"{self.name}.log").open("ab") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            # A session of its own: Ctrl-C reaches this program alone, which then stops the run once.
            return subprocess.Popen(  # noqa: S603
                self.command, stdout=log, stderr=log, env=environment, start_new_session=True
            )


def link(source: Path, folder: Path) -> None:
    """Link the finished files of a folder into another one."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.glob("[!.]*.safetensors"):
        if not (folder / file.name).exists():
            os.link(file, folder / file.name)


def all_jobs(subjects: Sequence[Subject], data: Path, out: Path, methods: Sequence[str]) -> list[Job]:
    """All trainings, then the runs over streams, seed after seed, then those of memo."""
    trainings: list[Job] = []
    runs: list[Job] = []
    last: list[Job] = []
    together = [method for method in methods if method != ALONE]
    for subject in subjects:
        readers: dict[str, Job] = {}  # the first training of a target reads the images for the others
        for seed, target in product(subject.seeds, subject.targets):
            job = partial(_job, subject, seed, target, data, out)
            training = job("train", "continual", ["source"], [RAW], readers.get(target), trains=True)
            readers.setdefault(target, training)
            trainings.append(training)
            rehearsed = seed in subject.rehearsed_seeds
            temperings = [RAW, REHEARSED] if rehearsed else [RAW]
            first = job("run", "continual", together, temperings, training)
            # The first makes the rehearsals, the others take them.
            before = first if rehearsed else training
            others = [stream for stream in subject.images if stream != "continual"]
            runs += [first, *(job("run", stream, together, temperings, before) for stream in others)]
            if ALONE in methods:
                last.append(job(ALONE, "continual", [ALONE], [RAW], training))
    return [*trainings, *runs, *last]


def _job(
    subject: Subject,
    seed: int,
    target: str,
    data: Path,
    out: Path,
    kind: str,
    stream: str,
    methods: Sequence[str],
    temperings: Sequence[str],
    after: Job | None,
    *,
    trains: bool = False,
) -> Job:
    place = "-".join(filter(None, (subject.name, str(seed), target, stream)))
    command = [
        *(sys.executable, "-m", "equipoise", "run", stream, "--on", subject.on, "--data", str(data)),
        *("--out", str(out / place), "--backbones", subject.backbone, "--seeds", str(seed)),
        *("--domain-images", str(subject.images[stream]), "--workers", str(subject.workers)),
        *("--tempering", ",".join(temperings), "--methods", ",".join(methods)),
        *(*subject.more, *(("--targets", target) if target else ())),
    ]
    return Job(f"{kind}-{place}", command, out / place, after, subject.workers, trains)


def run(jobs: Sequence[Job], processes: int) -> int:
    """Run jobs in their order, on so many processes, each after the one before it; returns the failed ones.

    A run after a failed training fails, too: it would train the same model, as would its neighbours.
    """
    waiting, running = list(jobs), dict[Job, "subprocess.Popen[bytes]"]()
    try:
        while waiting or running:
            for job in [job for job in waiting if job.after is None or job.after.failed is not None]:
                if job.after is not None and job.after.failed and job.after.trains and not job.trains:
                    waiting.remove(job)
                    job.failed = True
                    print(f"{job.name}: not run, as {job.after.name} failed", flush=True)
                elif _fits(job, running, processes):
                    waiting.remove(job)
                    running[job] = job.start()
            time.sleep(OFTEN)
            for job in [job for job, process in running.items() if process.poll() is not None]:
                job.failed = running.pop(job).returncode != 0
                words = "failed, see its log" if job.failed else "done"
                print(f"{job.name}: {words}; {len(waiting)} wait", flush=True)
    except KeyboardInterrupt:
        raise SystemExit("stopped: the same command goes on") from None
    finally:
        for process in running.values():
            process.terminate()  # Ctrl-C is ignored by what a script started with `&`
        for process in running.values():
            process.wait()
    return sum(job.failed is True for job in jobs)


def _fits(job: Job, running: Iterable[Job], processes: int) -> bool:
    """Whether there are processes left for a job, and nothing else writes into its folder."""
    others = list(running)
    busy = sum(other.workers for other in others)
    return (not others or busy + job.workers <= processes) and all(o.folder != job.folder for o in others)


def main() -> None:
    """Run the jobs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder with the data sets")
    parser.add_argument("out", type=Path, help="the folder for all runs")
    parser.add_argument("--processes", type=int, default=14, help="at a time")
    names = [subject.name for subject in SUBJECTS]
    parser.add_argument("--data-sets", nargs="*", choices=names, default=[n for n in names if n != "demo"])
    parser.add_argument("--methods", nargs="*", default=METHODS)
    given = parser.parse_args()
    if given.processes < 1:
        parser.error(f"--processes: expected at least 1, got {given.processes}")
    subjects = [subject for subject in SUBJECTS if subject.name in given.data_sets]
    given.out.mkdir(parents=True, exist_ok=True)
    failed = run(all_jobs(subjects, given.data, given.out.resolve(), given.methods), given.processes)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
