"""The commands of an install without extras: they work, or say in one line what to install."""

import json
import re
import subprocess
import sys

import pytest

import equipoise as eq
from equipoise.cli.plain import run_plain

# Runs commands one after the other where only the core can be imported, and prints the status of each.
BLOCKED = """
import contextlib, io, json, sys

extras = {"PIL", "click", "jinja2", "matplotlib", "mlxtend", "pandas", "pydantic", "ray", "rich", "scipy"}
extras |= {"sklearn", "tabulate", "timm", "torchvision", "typer", "yaml"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in extras:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from equipoise.__main__ import main

results = []
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            status = main()
        except SystemExit as stop:
            status = stop.code
    results.append([status, printed.getvalue()])
print(json.dumps(results))
"""


def test_version_and_methods_need_no_extras_and_data_says_which() -> None:
    commands = [["--version"], ["methods"], ["methods", "tent"], ["data", "pacs"]]
    ran = subprocess.run(
        [sys.executable, "-c", BLOCKED, json.dumps(commands)], capture_output=True, text=True, check=True
    )
    assert not ran.stderr
    *worked, (needs_more, _) = json.loads(ran.stdout)
    assert [status for status, _ in worked] == [None] * len(worked)
    version, methods, tent = (printed for _, printed in worked)
    assert version == f"equipoise {eq.__version__}\n"
    names = [line.split()[0] for line in methods.splitlines()[: len(eq.list_methods())]]
    assert names == eq.list_methods()
    assert "learning_rate" in tent
    assert needs_more.startswith("equipoise data needs typer: pip install 'equipoise[bench]'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "equipoise needs typer: pip install 'equipoise[demo]' (without it there are equipoise"),
        (["--help"], "equipoise --help needs typer: pip install 'equipoise[bench]'"),
        (["demo", "--quick"], "equipoise demo needs typer: pip install 'equipoise[demo]'"),
        (["run", "demo"], "equipoise run needs typer: pip install 'equipoise[bench]'"),
        (["methods", "--help"], "equipoise methods needs typer"),
        (["methods", "tent", "dec"], "equipoise methods needs typer"),
        (["methods", "tend"], "no method 'tend'; there are bn_alpha,"),
    ],
)
def test_everything_else_is_told_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(message)) as stop:
        run_plain(arguments, "typer")
    assert "\n" not in str(stop.value)
