"""The documentation site is complete and needs nothing from elsewhere; `make docs` checks its links."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import equipoise as eq
from equipoise import estimators, metrics
from equipoise.registry import method_class
from equipoise.research import data
from tests.docs.pages import DOCS

CONFIG = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text())
REFERENCE = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
ANSWERS = (
    "choosing-poise.md",
    "estimates.md",
    "guard.md",
    "monitoring.md",
    "performance.md",
    "rehearsal.md",
    "results.md",
    "streams.md",
)
"""The pages that have what was measured."""
DOCUMENTED = set(re.findall(r"^::: equipoise\.(\S+)$", REFERENCE, re.MULTILINE))


def pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from pages(part)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = sorted(pages(CONFIG["nav"]))
    assert len(listed) == len(set(listed))
    own = [path for path in DOCS.rglob("*.md") if path.parent != DOCS]
    assert {str(path.relative_to(DOCS)) for path in own} < set(listed)
    in_root = {"CHANGELOG.md", "CONTRIBUTING.md"}
    assert all((DOCS.parent / page if page in in_root else DOCS / page).is_file() for page in listed)


@pytest.mark.parametrize("page", ANSWERS)
def test_a_page_that_answers_a_question_is_short(page: str) -> None:
    """Its numbers in full are on pages of `tables/`, one click further."""
    lines = (DOCS / page).read_text().splitlines()
    assert len(lines) <= 150
    assert "](tables/" in "".join(lines)
    assert not [line for line in lines if len(line) > 150 and not line.startswith("|")]


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert CONFIG["theme"]["font"] is False
    assert not [name for name in (*CONFIG["extra_css"], *CONFIG.get("extra_javascript", [])) if "//" in name]
    for style in (DOCS / "assets").glob("*.css"):
        assert "url(" not in style.read_text()


def test_every_public_name_is_in_the_reference() -> None:
    names = [name for name in eq.__all__ if not inspect.ismodule(getattr(eq, name)) and name[0] != "_"]
    apart = {"EquipoiseError": "errors"}  # on the page of its module
    assert {apart.get(name, name) for name in names} <= DOCUMENTED
    assert {f"metrics.{name}" for name in metrics.__all__ if name[0].isupper()} <= DOCUMENTED
    assert {f"estimators.{name}" for name in estimators.__all__} <= DOCUMENTED
    for name in (name for name in metrics.__all__ if name[0].islower()):
        assert name in REFERENCE
    assert {
        f"research.data.{n}" for n in data.__all__ if not inspect.ismodule(getattr(data, n))
    } <= DOCUMENTED | {"research.data.data_set_class"}
    for name in eq.list_methods():
        assert f"methods.{name}.{method_class(name).__name__}" in DOCUMENTED
