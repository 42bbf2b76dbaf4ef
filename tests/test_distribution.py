"""The wheel: metadata that a package index accepts, and every file of the package."""

import re
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import hatchling.build
import pytest
import yaml
from twine.commands.check import check

import equipoise as eq

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "equipoise"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield folder / hatchling.build.build_wheel(str(folder))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_a_package_index_accepts_it(wheel: Path) -> None:
    failed: bool = check([str(wheel)], strict=True)
    assert not failed


def test_every_file_of_the_package_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("equipoise/")}
    files = {f"equipoise/{p.relative_to(SOURCE).as_posix()}" for p in SOURCE.rglob("*") if p.is_file()}
    assert packed == {name for name in files if "__pycache__" not in name}
    for kind in (".yaml", ".css", ".html", ".js", ".json", ".svg", "/py.typed", "/uplot/LICENSE"):
        assert any(name.endswith(kind) for name in packed), kind


def test_the_metadata(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("equipoise", eq.__version__)
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["Project-URL"].startswith("Paper, https://openreview.net/")
    core = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    names = {re.split(r"[^a-z]", line)[0] for line in core}
    assert names == {"torch", "numpy", "safetensors", "torchmetrics", "tqdm"}


def test_the_description_is_fine_without_the_repository(metadata: Message) -> None:
    text = str(metadata.get_payload())
    assert "# equipoise" in text
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", text) == []
    assert "<img" not in text


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["title"], citation["version"]) == ("equipoise", eq.__version__)
    assert citation["references"][0]["title"].startswith("The Over-Certainty Phenomenon")
