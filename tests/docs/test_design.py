"""docs/design.md: its paths exist, and no name uses a word of its glossary for something else."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import equipoise as eq
from equipoise.factory import options_of

SOURCE = Path(eq.__file__).parent
DESIGN = SOURCE.parents[1] / "docs" / "design.md"
WITH_OPTIONS = ("Guarded", "Monitor", "Tempered", "create", "load", "recommend", "rehearse", "replay", "wrap")
"""Public names whose keywords are options, beside those of every method and adapter."""


def glossary() -> dict[str, tuple[str, ...]]:
    """The words of the table, each with the places where names may have it: paths in src/equipoise."""
    table = DESIGN.read_text().split("## Glossary")[1]
    rows = re.findall(r"^\| \*\*([a-z ]+)\*\* \|.*\|([^|]+)\|$", table, re.MULTILINE)
    return {word: tuple(re.findall(r"`([^`]+)`", places)) for word, places in rows}


def words(name: str) -> list[str]:
    """The words of a name, in the singular: "StreamFacts" and "stream_facts" are "stream" and "fact"."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)
    return [part.lower().removesuffix("s") for part in parts]


def names() -> Iterator[tuple[str, str]]:
    """Every module, folder, class and option of the package, and its place: a path, or "option NAME"."""
    for path in sorted(SOURCE.rglob("*.py")):
        place = str(path.relative_to(SOURCE))
        yield path.parent.name if path.name == "__init__.py" else path.stem, place
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield node.name, place
    options = {option for method in eq.list_methods() for option in options_of(method)}
    for public in WITH_OPTIONS:
        options |= inspect.signature(getattr(eq, public)).parameters.keys()
    for option in sorted(options):
        yield option, f"option {option}"


def has(name: str, word: str) -> bool:
    wanted, found = [part.removesuffix("s") for part in word.split()], words(name)
    return any(found[at : at + len(wanted)] == wanted for at in range(len(found)))


def test_the_glossary_is_short_enough_to_read() -> None:
    assert 10 <= len(glossary()) <= 22


def test_no_name_uses_a_word_of_the_glossary_for_something_else() -> None:
    every = list(names())
    for word, places in glossary().items():
        found = [(name, place) for name, place in every if has(name, word)]
        wrong = [f"{name} ({place})" for name, place in found if not place.startswith(places)]
        assert not wrong, f"{word!r} has one meaning in {DESIGN.name}: rename {', '.join(wrong)}"
        for place in places:
            here = any(at.startswith(place) for _, at in found)
            assert here, f"{word!r}: no name at {place} has the word now, remove the place from the glossary"


def test_the_paths_of_the_page_exist() -> None:
    page = DESIGN.read_text()
    found = set(re.findall(r"[a-z_]+(?:/[a-z_*]+)*/[a-z_*]*(?:\.(?:py|yml|md|js))?|\b[a-z_]+\.py", page))
    roots = [
        SOURCE.parents[1],
        SOURCE,
        *(SOURCE / at for at in ("methods", "production", "production/server", "research")),
    ]
    missing = [path for path in sorted(found) if not any([*root.glob(path)] for root in roots)]
    assert len(found) > 40
    assert not missing, f"{DESIGN.name} names {', '.join(missing)}"
