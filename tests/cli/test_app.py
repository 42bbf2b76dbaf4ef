"""The command line: help, lists of values, and what an install without its packages says."""

import subprocess
import sys
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli.app import app, comma_list

runner = CliRunner()


def test_help_and_version() -> None:
    assert eq.__version__ in runner.invoke(app, ["--version"]).output
    assert "demo" in runner.invoke(app, []).output
    assert "nothing is" in runner.invoke(app, ["demo", "--help"]).output


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("check", "equipoise check mine.py"),
        ("check", "class Mine(GradientMethod):"),
        ("rehearse", "equipoise rehearse mymodel:load held_out"),
        ("rehearse", "def load():"),
        ("run", "--methods source,dec"),
    ],
)
def test_help_has_examples(command: str, example: str) -> None:
    assert example in " ".join(runner.invoke(app, [command, "--help"]).output.split())


@pytest.mark.parametrize(
    "arguments",
    [["demo", "--seed", "-1"], ["demo", "--speed", "9"], ["dmeo"], ["rehearse", "m:f", "d", "--shifts", "3"]],
)
def test_wrong_words_are_refused_at_once(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


# Runs commands one after the other, and prints what each has loaded of packages that take long.
LOADED = """
import sys
from equipoise.__main__ import main
slow = {"torch", "numpy", "pandas", "matplotlib", "torchvision", "scipy", "sklearn", "fastapi"}
for arguments in sys.argv[1:]:
    sys.argv[1:] = arguments.split()
    try:
        main()
    except SystemExit as stop:
        print("\\nstatus", stop.code, *sorted(slow & set(sys.modules)))
"""


def test_help_version_and_wrong_words_load_nothing_that_takes_long() -> None:
    commands = sorted(command.name or "" for command in app.registered_commands)
    quick = {"": 2, "--help": 0, "--version": 0, "dmeo": 2, "demo --speed 9": 2, "methods --help": 0}
    quick |= {f"{command} --help": 0 for command in commands}
    program = [sys.executable, "-c", LOADED, *quick]
    result = subprocess.run(program, capture_output=True, text=True, check=True)
    said = [line for line in result.stdout.splitlines() if line.startswith("status")]
    assert said == [f"status {status}" for status in quick.values()], result.stderr


def test_a_wrong_command_is_answered_with_the_nearest() -> None:
    assert "Did you mean 'rehearse'?" in runner.invoke(app, ["reherse"]).output


# Runs commands one after the other where a package cannot be imported, and prints the status of each.
BLOCKED = """
import sys
sys.modules[sys.argv[1]] = None
from equipoise.__main__ import main
for arguments in sys.argv[2:]:
    sys.argv[1:] = arguments.split()
    try:
        main()
    except SystemExit as stop:
        print(stop.code)
"""


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (
            "typer",
            {
                "": "equipoise needs typer: pip install 'equipoise[demo]'",
                "--help": "equipoise --help needs typer: pip install 'equipoise[bench]'",
                "demo --quick": "equipoise demo needs typer: pip install 'equipoise[demo]'",
                "run demo": "equipoise run needs typer: pip install 'equipoise[bench]'",
                "estimate a b": "equipoise estimate needs typer: pip install 'equipoise[demo]'",
                "serve m:f": "equipoise serve needs typer: pip install 'equipoise[serve]'",
                "methods tent": "equipoise methods needs typer: pip install 'equipoise[bench]'",
            },
        ),
        ("yaml", dict.fromkeys(("run demo", "recipes"), "This needs yaml: pip install 'equipoise[bench]'")),
        ("pandas", {"estimate a b": "This needs pandas: pip install 'equipoise[demo]'"}),
        ("uvicorn", {"serve m:f --state s": "This needs uvicorn: pip install 'equipoise[serve]'"}),
    ],
)
def test_a_missing_package_is_told_in_one_line_with_its_extra(missing: str, told: dict[str, str]) -> None:
    command = [sys.executable, "-c", BLOCKED, missing, *told]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    printed = (result.stdout + result.stderr).splitlines()
    assert sorted(line for line in printed if line != "1") == sorted(told.values())


@pytest.mark.parametrize(
    ("arguments", "words", "numbers"),
    [
        (["--words", "a,b,,c"], ["a", "b", "c"], []),
        (["--words=a,b", "--numbers", "1,-2"], ["a", "b"], [1, -2]),
        (["--words", "a", "--words", "b,c"], ["a", "b", "c"], []),
        ([], [], []),
    ],
)
def test_lists_have_commas(arguments: list[str], words: list[str], numbers: list[int]) -> None:
    assert lists(*arguments) == (0, words, numbers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--words"], "requires an argument"),
        (["--words", ","], "at least one value"),
        (["--words", "a", "b"], "unexpected extra argument"),
        (["--numbers", "1,b"], "expected whole numbers with commas between them, got 1,b"),
    ],
)
def test_a_list_that_is_none_is_refused(arguments: list[str], message: str) -> None:
    status, output = lists(*arguments)
    assert status == 2
    assert message in output


def lists(*arguments: str) -> tuple[Any, ...]:
    """The status of a command with two lists, and the values or the output."""
    found: list[Any] = []
    program = typer.Typer(rich_markup_mode=None)

    @program.command()
    def command(
        words: Annotated[list[str] | None, comma_list(str, "Words.")] = None,
        numbers: Annotated[list[int] | None, comma_list(int, "Numbers.")] = None,
    ) -> None:
        found.extend([words or [], numbers or []])

    result = runner.invoke(program, arguments)
    return result.exit_code, *(found or [result.output])
