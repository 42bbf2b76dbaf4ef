"""The wheel: metadata that a package index accepts, every file, and what runs where it is installed."""

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import hatchling.build
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from twine.commands.check import check

import equipoise as eq
from tests.test_readme import EXAMPLES

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


# A demo of seconds where some of the installed packages cannot be imported.
SMALL_DEMO = """
import json, pytest, sys
from importlib.machinery import PathFinder
from pathlib import Path

find, closed = PathFinder.find_spec, set(json.load(sys.stdin))

def find_open(name, path=None, target=None):
    return None if name.partition(".")[0] in closed else find(name, path, target)

PathFinder.find_spec = find_open
from equipoise.cli.experiments import run_demo
from tests.cli.test_demo import small
small(pytest.MonkeyPatch())
run_demo(Path(sys.argv[1]), quick=True)
"""


def installed_for(lines: list[str], extra: str = "") -> set[str]:
    """The names of the distributions that requirements ask for, and those ask for, in this environment."""
    found: set[str] = set()
    waiting = [(Requirement(line), extra) for line in lines]
    while waiting:
        wanted, of = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": of})):
            found.add(name)
            needed = [Requirement(line) for line in distribution(name).requires or []]
            waiting += [(each, extra) for each in needed for extra in wanted.extras or {""}]
    return found


def test_the_extra_of_the_demo_has_all_that_the_demo_imports(metadata: Message, tmp_path: Path) -> None:
    extra = installed_for(metadata.get_all("Requires-Dist", []), "demo") | {"equipoise"}
    closed = [
        name
        for name, owners in packages_distributions().items()
        if not extra & set(map(canonicalize_name, owners))
    ]
    assert {"timm", "torchvision", "sklearn", "fastapi"} <= set(closed)
    command = [sys.executable, "-c", SMALL_DEMO, str(tmp_path)]
    done = subprocess.run(command, input=json.dumps(closed), capture_output=True, text=True, cwd=ROOT)
    results = tmp_path / "quick" / "results.jsonl"
    assert done.returncode == 0, results.read_text() if results.exists() else done.stderr
    assert (tmp_path / "index.html").is_file()


# The ten lines of the README, and what they take as given: a model that answers all of its classes, and data.
TEN_LINES = f"""
import torch
import equipoise
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
with torch.no_grad():
    model.eval()[-1].bias.sub_(model(torch.randn(200, 1, 8, 8)).mean(0))
    held_out = [(x, model(x).argmax(1)) for x in torch.randn(3, 40, 1, 8, 8)]
stream = [torch.randn(8, 1, 8, 8)]
{EXAMPLES[0]}
print(equipoise.__file__, act.shape)
"""


def test_the_ten_lines_run(tmp_path: Path) -> None:
    """Quickly, so that the slow test below is known to have all they need."""
    command = [sys.executable, "-c", TEN_LINES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_ten_lines_run_where_only_the_wheel_was_installed(tmp_path: Path) -> None:
    """From the source archive to the wheel and into a bare environment, by the package index: gigabytes."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "bare")], check=True)
    bare = [str(tmp_path / "bare" / "bin" / "python"), "-I"]
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([*bare, "-m", "pip", "install", "-c", constraints, str(wheel)], check=True)
    done = subprocess.run([*bare, "-c", TEN_LINES], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    assert "torch.Size([8])" in done.stdout
