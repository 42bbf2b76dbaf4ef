"""How fast the corruptions are: images a second, beside those of the package imagecorruptions.

    python -m benchmarks.corruption_speed FOLDER [--images N] [--rounds R] [--job PROCESSES]

FOLDER is TinyImageNet's: its validation images, FOLDER/val/images/*, are what is corrupted. Every corruption
and tier is timed in turn, ours on the batch, ours image by image, theirs image by image, in one process with
one thread; the median of the rounds is kept, in seconds of the processor. Theirs are timed if
`imagecorruptions` can be imported (1.1.2 needs `pkg_resources`, so `setuptools<81`), and only those of its
functions that run; it has the constants of 224 pixels at any size. With --job, all images are corrupted by
all 75 instead, by ours, in so many processes.
"""

import argparse
import importlib
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from equipoise.research.data.corruptions import CORRUPTIONS, TIERS, corrupt

Images = NDArray[np.uint8]


@cache
def read(folder: Path, count: int | None) -> Images:
    """The first validation images, (N, 64, 64, 3)."""
    paths = sorted((folder / "val" / "images").iterdir())[:count]
    return np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])


def rival() -> Any:
    """The package imagecorruptions with one thread, or None where it is not installed."""
    warnings.simplefilter("ignore")  # it uses what is deprecated
    try:
        package = importlib.import_module("imagecorruptions")
    except ImportError as error:
        print(f"imagecorruptions cannot be imported ({error}): only ours are timed\n")
        return None
    importlib.import_module("cv2").setNumThreads(1)
    return package


def seconds(call: Callable[[], Any]) -> float:
    """The processor's time for a call, in all threads: what else the machine does is left out."""
    start = time.process_time()
    call()
    return time.process_time() - start


def why_not(package: Any, name: str, image: Images) -> str | None:
    """What keeps a function of the rival from running, if anything does."""
    try:
        for tier in TIERS:
            package.corrupt(image, corruption_name=name, severity=tier)
    except Exception as error:  # of whatever kind: it is reported
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def calls(images: Images, name: str, tier: int, package: Any) -> dict[str, Callable[[], Any]]:
    """What is timed: ours on the batch, ours one by one, and theirs if they are there."""
    seeds = range(len(images))
    found: dict[str, Callable[[], Any]] = {
        "batch": lambda: corrupt(images, name, tier, seeds),
        "single": lambda: [corrupt(images[i : i + 1], name, tier, [i]) for i in seeds],
    }
    if package:
        found["theirs"] = lambda: [package.corrupt(x, corruption_name=name, severity=tier) for x in images]
    return found


def spent(images: Images, name: str, rounds: int, package: Any) -> dict[str, float]:
    """Seconds for all tiers of a corruption, each the median of rounds in which all take turns."""
    totals: dict[str, float] = {}
    for tier in TIERS:
        corrupt(images[:1], name, tier, [0])  # makes what is made once
        ways = calls(images, name, tier, package)
        takes = [{kind: seconds(call) for kind, call in ways.items()} for _ in range(rounds)]
        for kind in ways:
            totals[kind] = totals.get(kind, 0) + median(take[kind] for take in takes)
    return totals


def timed(images: Images, rounds: int, package: Any) -> None:
    """Time every corruption, and print a table of images a second."""
    count = len(images) * len(TIERS)
    both: dict[str, dict[str, float]] = {}
    notes = []
    print("| corruption | ours, images/s | one by one | imagecorruptions | ratio | one by one |")
    print("|---|---|---|---|---|---|")
    for name in CORRUPTIONS:
        failure = why_not(package, name, images[0]) if package else None
        took = spent(images, name, rounds, None if failure else package)
        speeds = [
            f"{count / took[kind]:,.0f}" if kind in took else "-" for kind in ("batch", "single", "theirs")
        ]
        ratios = ["-", "-"]
        if "theirs" in took:
            both[name] = took
            ratios = [f"{took['theirs'] / took[kind]:.1f}" for kind in ("batch", "single")]
        if failure:
            notes.append(f"{name} of imagecorruptions fails: {failure}")
        print(f"| {name} | {' | '.join(speeds + ratios)} |", flush=True)
    print("\n" + "\n".join(notes))
    for left_out in ((), ("frost",), ("frost", "zoom_blur")):
        rows = [took for name, took in both.items() if name not in left_out]
        if rows:
            ours, single, theirs = (sum(row[kind] for row in rows) for kind in ("batch", "single", "theirs"))
            print(f"\nall {len(rows)} that both run{' but ' if left_out else ''}{' and '.join(left_out)}:")
            print(f"ours {ours:.2f} s, one by one {single:.2f} s, theirs {theirs:.2f} s")
            print(f"ratio {theirs / ours:.1f}, one by one {theirs / single:.1f}")


def share(folder: Path, name: str, tier: int, start: int, stop: int) -> tuple[int, float]:
    """Corrupt a part of the images in a process of the job; how many, and the seconds of the processor."""
    images = read(folder, None)[start:stop]
    took = seconds(lambda: corrupt(images, name, tier, range(start, start + len(images))))
    return len(images), took


def job(folder: Path, processes: int, part: int = 1000) -> None:
    """Corrupt all images by all corruptions at all tiers, and print how long it took."""
    count = len(read(folder, None))
    tasks = [
        (folder, name, tier, start, start + part)
        for name in CORRUPTIONS
        for tier in TIERS
        for start in range(0, count, part)
    ]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        # Every process reads the images before the clock starts.
        list(pool.map(share, *zip(*tasks[: 4 * processes], strict=True)))
        start = time.perf_counter()
        done, busy = zip(*pool.map(share, *zip(*tasks, strict=True)), strict=True)
        took = time.perf_counter() - start
    print(f"{count:,} images by {len(CORRUPTIONS)} corruptions at {len(TIERS)} tiers: {sum(done):,} images")
    print(f"{processes} processes: {took:.1f} s, {sum(done) / took:,.0f} images/s")
    print(f"the processor was busy for {sum(busy):.1f} s: {sum(done) / sum(busy):,.0f} images/s and process")


def main() -> None:
    """Time one by one, or do the whole job."""
    parser = argparse.ArgumentParser(description="How fast the corruptions are.")
    parser.add_argument("folder", type=Path, help="TinyImageNet, with val/images")
    parser.add_argument("--images", type=int, default=128, help="how many images to time with")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed")
    parser.add_argument(
        "--job", type=int, metavar="PROCESSES", help="corrupt all images, in so many processes"
    )
    options = parser.parse_args()
    if options.job:
        job(options.folder, options.job)
    else:
        images = read(options.folder, options.images)
        print(f"{len(images)} images, five tiers, median of {options.rounds}\n")
        timed(images, options.rounds, rival())


if __name__ == "__main__":
    main()
