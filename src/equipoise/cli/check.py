"""`equipoise check`: check the methods of a file and print the findings."""

import re
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from equipoise.errors import RecipeError
from equipoise.registry import file_digest
from equipoise.research.experiment.user_files import methods_of
from equipoise.testing.mark import remove_mark, write_mark
from equipoise.testing.models import SMALL_MODELS
from equipoise.testing.suite import PROMISES, Finding, Outcome, check_method

BROKEN, NOTHING_TO_CHECK = 1, 2
"""Exit statuses."""

_SIGNS: dict[Outcome, str] = {"passed": "✓", "not possible": "\N{EN DASH}", "remark": "!", "failed": "✗"}
_LEGEND = "✓ kept   ✗ broken   \N{EN DASH} the method refuses the model   ! a remark"


def check_file(file: Path, method: str | None = None, console: Console | None = None) -> int:
    """Check the methods of a file, or one of them; returns the exit status."""
    shown = console or Console()
    try:
        digest = file_digest(file) if file.is_file() else ""
        names = _chosen(file, method)
    except (RecipeError, OSError) as error:
        Console(stderr=True).print(f"{error}", highlight=False, markup=False, soft_wrap=True)
        return NOTHING_TO_CHECK
    findings = {name: _checked(name, shown) for name in names}
    for name, found in findings.items():
        _show(name, found, shown)
    if any(finding.outcome == "failed" for found in findings.values() for finding in found):
        remove_mark(file)
        return BROKEN
    _say(f"checked: {', '.join(names)}; the mark is {write_mark(file, digest, names)}", shown)
    return 0


def _chosen(file: Path, method: str | None) -> list[str]:
    names = methods_of(str(file))
    if not names:
        raise RecipeError(
            f"{file} registers no method: decorate a subclass of Method with equipoise.register"
        )
    if method is not None and method not in names:
        raise RecipeError(f"{file} registers no method {method!r}; it has {', '.join(names)}")
    return names if method is None else [method]


def _checked(name: str, console: Console) -> list[Finding]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(f"checking {name}", total=None)
        return check_method(name, progress=lambda done, total: bar.update(task, completed=done, total=total))


def _show(name: str, findings: list[Finding], console: Console) -> None:
    """Print a table of promises by kinds of models, then failures and remarks in full."""
    table = Table(
        "promise",
        *(_heading(kind) for kind in SMALL_MODELS),
        title=name,
        caption=_LEGEND,
        box=None,
    )
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "center"
    signs = {(finding.promise, finding.kind): _SIGNS[finding.outcome] for finding in findings}
    for promise in PROMISES:
        table.add_row(promise.words, *(signs[promise, kind] for kind in SMALL_MODELS))
    console.print(table, highlight=False)
    for outcome in ("failed", "remark"):
        _show_messages([finding for finding in findings if finding.outcome == outcome], console)


def _show_messages(findings: list[Finding], console: Console) -> None:
    """Print each message once, with the kinds of models that it is about.

    Messages that differ in the size of a difference alone are one: that of the first kind.
    """
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: PROMISES.index(finding.promise)):
        message = re.sub(r"largest difference [^\s)]+", "", finding.message)
        alike.setdefault((finding.promise.name, message), []).append(finding)
    for first, *others in alike.values():
        kinds = ", ".join(_heading(finding.kind) for finding in (first, *others))
        _say(f"{_SIGNS[first.outcome]} {first.promise.words} [{kinds}]: {first.message}", console)


def _heading(kind: str) -> str:
    return "no norm" if kind == "norm_free" else kind.removesuffix("_norm")


def _say(text: str, console: Console) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
