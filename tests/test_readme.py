"""The examples of README.md and CONTRIBUTING.md run as they stand."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from tests.toys import drifted, images, make

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def examples(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


EXAMPLES = examples(README)


def test_the_ten_lines_are_ten() -> None:
    lines = [line for line in EXAMPLES[0].splitlines() if line.strip()]
    assert len(lines) <= 11  # ten, and the import


def test_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, _ = make()
    names: dict[str, Any] = {
        "model": model,
        "held_out_loader": [(images(40, seed), torch.arange(40) % 5) for seed in range(3)],
        "stream": [drifted(8)],
    }
    exec(EXAMPLES[0], names)
    assert isinstance(names["adapter"], eq.Poise)
    assert names["logits"].shape == (8, 5)
    names["labelled"] = [(drifted(8), torch.zeros(8, dtype=torch.long))]
    exec(EXAMPLES[1], names)
    exec(EXAMPLES[2], names)
    assert isinstance(names["adapter"], eq.Tempered)


def test_every_method_and_option_has_its_place() -> None:
    text = README.read_text()
    for name in eq.list_methods():
        assert f"`{name}`" in text
    for option in {**eq.DEC.known_options(), **eq.Poise.known_options()}:
        assert f"`{option}" in text, option


def option_table() -> str:
    """Every option of every method with its default, as the page has it."""
    model, source = make()
    known = {name: type(eq.create(name, model, source)).known_options() for name in eq.list_methods()}
    names = sorted({option for options in known.values() for option in options})
    rows = [
        "| option | " + " | ".join(f"`{method}`" for method in known) + " |",
        "|---" * (len(known) + 1) + "|",
    ]
    for name in names:
        cells = [str(options[name]) if name in options else "" for options in known.values()]
        rows.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def test_the_page_of_methods_is_complete() -> None:
    text = (ROOT / "docs" / "methods.md").read_text()
    assert option_table() in text
    for name in eq.list_methods():
        assert f"\n### `{name}`: " in text
        # What it is, two data sets, costs, memory; the two data sets were not run with poise.
        assert text.count(f"\n| `{name}` |") >= (3 if name == "poise" else 5)


@pytest.mark.parametrize("name", eq.list_methods())
def test_every_option_is_in_the_docstring(name: str) -> None:
    model, source = make()
    method = type(eq.create(name, model, source))
    for option in method.known_options():
        assert f" {option}: " in (method.__doc__ or "") or f"`{option}`" in (method.__doc__ or ""), option


CONFORMANCE = """
import sys
import pytest
exec(open(sys.argv[1]).read())
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", "mine", "tests/test_conformance.py"]))
"""


def test_the_method_of_the_contributing_page_conforms(tmp_path: Path) -> None:
    (example,) = examples(ROOT / "CONTRIBUTING.md")
    file = tmp_path / "mine.py"
    file.write_text(example)
    command = [sys.executable, "-c", CONFORMANCE, str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:]
    assert re.search(r"\b1\d\d passed", result.stdout)
