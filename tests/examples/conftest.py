"""`equipoise serve` with the house numbers of the examples, in a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import house_numbers
from tests.support.waiting import HANG

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the files that house_numbers.py writes."""
    folder = tmp_path_factory.mktemp("house-numbers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(house_numbers, "FOLDER", folder)
        house_numbers.main()
    return folder


@pytest.fixture(scope="session")
def server(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server."""
    state = tmp_path_factory.mktemp("state")
    source = str(trained / "source.safetensors")
    command = [sys.executable, "-m", "equipoise", "serve", "house_numbers:factory", "--port", "0"]
    command += ["--source", source, "--state", str(state), "--latency-ms", str(1000 * HANG)]
    environment = os.environ | {"HOUSE_NUMBERS": str(trained), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=EXAMPLES, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, "the server has ended before it said its address"
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
        yield found.group()
        process.terminate()
        process.stdout.read()
        assert process.wait(HANG) == 0
