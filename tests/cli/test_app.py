import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli.app import app

runner = CliRunner()


def test_help_and_version() -> None:
    assert eq.__version__ in runner.invoke(app, ["--version"]).output
    assert "demo" in runner.invoke(app, []).output
    assert "nothing is" in runner.invoke(app, ["demo", "--help"]).output


@pytest.mark.parametrize("arguments", [["demo", "--seed", "-1"], ["demo", "--speed", "9"], ["dmeo"]])
def test_wrong_words_are_refused_at_once(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


def test_a_folder_that_cannot_be_made_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = runner.invoke(app, ["demo", "--quick", "--out", str(tmp_path / "file" / "demo")])
    assert result.exit_code == 1
    assert "Cannot write to" in result.output
    assert "Traceback" not in result.output


def test_ctrl_c_ends_the_demo_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "equipoise", "demo", "--quick", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not out.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopped; nothing was written." in errors
    assert "Traceback" not in errors
    assert not out.exists()


def test_without_the_demo_packages_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from equipoise.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "pip install 'equipoise[demo]'" in result.stderr
    assert "Traceback" not in result.stderr
