import subprocess
import sys

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


def test_without_the_demo_packages_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from equipoise.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "pip install 'equipoise[demo]'" in result.stderr
    assert "Traceback" not in result.stderr
