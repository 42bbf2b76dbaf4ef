"""The list of examples: all of them, and only files that there are."""

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_example_is_listed_and_every_listed_one_is_there() -> None:
    text = (EXAMPLES / "README.md").read_text()
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh", ".ipynb")}
    assert files == set(re.findall(r"\b[a-z_]+\.(?:py|sh|ipynb)\b", text))
    for link in re.findall(r"\]\(([^)]*)\)", text):
        assert (EXAMPLES / link).exists(), link
