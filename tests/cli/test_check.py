"""`equipoise check`: tables, messages, exit statuses and the mark that `equipoise run` asks for."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import check
from equipoise.cli.app import app
from equipoise.cli.check import check_file
from equipoise.cli.experiments import unchecked
from equipoise.registry import file_digest
from equipoise.research.experiment.user_files import methods_of
from equipoise.testing import mark, suite
from equipoise.testing.models import SMALL_MODELS
from equipoise.testing.suite import PROMISES, Finding, Outcome

runner = CliRunner()

METHOD = '''
from dataclasses import dataclass

from equipoise import register
from equipoise.core.gradient import GradientMethod, Loss
from equipoise.functional import entropy
from equipoise.methods.tent import Tent  # imported, and not this file's


@register
@dataclass(frozen=True, kw_only=True)
class Mine(GradientMethod):
    """The mean entropy."""

    name = "NAME"

    def loss(self, logits, targets, context):
        return Loss(entropy(logits).mean(), used=len(logits))
'''


def write(folder: Path, name: str = "mine", text: str = METHOD) -> Path:
    file = folder / f"{name}.py"
    file.write_text(text.replace("NAME", name))
    return file


def all_are(outcome: Outcome, monkeypatch: pytest.MonkeyPatch, message: str = "") -> list[str]:
    """Let every finding of a check be the same, at once; the names that are checked."""
    names: list[str] = []

    def checked(name: str, _console: Console) -> list[Finding]:
        names.append(name)
        return [Finding(promise, kind, outcome, message) for promise in PROMISES for kind in SMALL_MODELS]

    monkeypatch.setattr(check, "_checked", checked)
    return names


@pytest.fixture
def _few_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check two promises: tests/test_readme.py checks all of them, which takes seconds."""
    few = tuple(promise for promise in PROMISES if promise.name in ("adapts_the_model", "reset_is_exact"))
    monkeypatch.setattr(suite, "PROMISES", few)
    monkeypatch.setattr(check, "PROMISES", few)


def test_the_table_has_a_row_for_each_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_are("passed", monkeypatch)
    output = runner.invoke(app, ["check", str(write(tmp_path))]).output
    for promise in PROMISES:
        assert promise.words in output
        assert len(promise.words) < 36  # so that the table has room in 80 columns


@pytest.mark.usefixtures("_few_promises")
def test_a_method_that_keeps_the_contract_gets_a_mark(tmp_path: Path) -> None:
    file = write(tmp_path)
    result = runner.invoke(app, ["check", str(file)])
    assert result.exit_code == 0, result.output
    row = next(line for line in result.output.splitlines() if "reset is exact" in line)
    assert row.split()[-5:] == ["✓", "✓", "✓", "✓", "\N{EN DASH}"]  # it has no layer to learn with
    assert f"checked: mine; the mark is {file}.checked" in result.output.replace("\n", "")
    written = json.loads(Path(f"{file}.checked").read_text())
    assert written == {"digest": file_digest(file), "equipoise": eq.__version__, "methods": ["mine"]}
    assert unchecked([str(file)]) == []


@pytest.mark.usefixtures("_few_promises")
def test_a_broken_method_is_said_in_full_and_loses_its_mark(tmp_path: Path) -> None:
    broken = METHOD.replace(
        "return Loss(", "self.seen.append(1)\n        return Loss(len(self.seen) * "
    ).replace('name = "NAME"', 'name = "NAME"\n    seen = []')
    file = write(tmp_path, "forgetful", broken)
    mark.write_mark(file, file_digest(file), ["forgetful"])
    result = runner.invoke(app, ["check", str(file)])
    assert result.exit_code == 1
    assert "✗ reset is exact [batch" in result.output
    assert "after reset(), batch" in result.output
    assert result.output.count("✗ reset is exact [") < len(SMALL_MODELS)
    assert not mark.mark_path(file).exists()


def test_a_refused_file_ends_with_status_2(tmp_path: Path) -> None:
    cases = {
        "nothing": (tmp_path / "nothing.py", "expected a Python file, got "),
        "fails": (write(tmp_path, "fails", "1 / 0"), "cannot be run: ZeroDivisionError: division by zero"),
        "empty": (
            write(tmp_path, "empty", "from equipoise.methods.tent import Tent"),
            "registers no method:",
        ),
        "folder": (tmp_path, "expected a Python file, got "),
    }
    for file, message in cases.values():
        result = runner.invoke(app, ["check", str(file)])
        assert result.exit_code == 2
        assert message in result.output
        assert "Traceback" not in result.output
    result = runner.invoke(app, ["check", str(write(tmp_path)), "--method", "yours"])
    assert result.exit_code == 2
    assert "registers no method 'yours'; it has mine" in result.output


def test_every_method_of_a_file_or_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = METHOD + METHOD.replace("NAME", "second").replace("class Mine", "class Second")
    file = write(tmp_path, "first", two)
    assert methods_of(str(file)) == ["first", "second"]
    names = all_are("passed", monkeypatch)
    assert check_file(file, "second", Console(file=StringIO())) == 0
    assert names == ["second"]
    assert mark.checked_methods(file) == ["second"]
    assert [line.split(": ")[1] for line in unchecked([str(file)])] == [
        "the method 'first' was not checked; run"
    ]
    assert check_file(file, None, Console(file=StringIO())) == 0
    assert names == ["second", "first", "second"]
    assert mark.checked_methods(file) == ["first", "second"]


def test_a_remark_is_printed_and_does_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_are("remark", monkeypatch, "works, but [slowly]")
    said = StringIO()
    assert check_file(write(tmp_path, "remarked"), None, Console(file=said, width=100)) == 0
    kinds = "[batch, layer, group, instance, no norm]"
    assert f"! the host reads no tensor {kinds}: works, but [slowly]" in said.getvalue()


def test_a_mark_of_other_contents_or_another_version_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "marked")
    monkeypatch.chdir(tmp_path)
    expected = ["marked.py: the method 'marked' was not checked; run: equipoise check marked.py"]
    assert unchecked([str(file)]) == expected
    path = mark.write_mark(file, file_digest(file), ["marked"])
    assert path == tmp_path / "marked.py.checked"
    files = sorted(entry.name for entry in tmp_path.iterdir() if entry.is_file())
    assert files == ["marked.py", "marked.py.checked"]
    assert unchecked([str(file)]) == []
    with monkeypatch.context() as later:
        later.setattr(mark, "__version__", "9.9")
        assert unchecked([str(file)]) == expected
    assert unchecked([str(file)]) == []
    file.write_text(file.read_text() + "# changed\n")
    assert unchecked([str(file)]) == expected
    for damaged in ("", "[]", "{}", "null", '{"digest": 1, "equipoise": 2, "methods": 3}', "\udc80"):
        path.write_text(damaged, errors="surrogateescape")
        assert unchecked([str(file)]) == expected


def test_a_file_that_changed_during_the_check_is_not_checked(tmp_path: Path) -> None:
    file = write(tmp_path, "changed")
    before = file_digest(file)
    file.write_text("# other")
    mark.write_mark(file, before, ["changed"])
    assert mark.checked_methods(file) == []
