"""The hash of a method's code: every file that its answers depend on, and no other."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import equipoise as eq
from equipoise import registry
from equipoise.research.experiment import provenance
from equipoise.research.experiment.provenance import code_digest
from equipoise.research.experiment.user_files import methods_of

from .own import METHOD

METHODS = ("tent", "eta", "eata", "source")
SHARED = [
    "adapter",
    "methods/parts/lone_samples",
    "calibration/temper",
    "metrics/__init__",
    "rehearsal/rehearse",
]
SHARED += [f"research/experiment/{part}" for part in ("one_run", "rehearsals", "repeatable", "scores")]
EDITS = {
    "methods/tent.py": ["tent"],
    "methods/eta.py": ["eta", "eata"],  # which inherits from it
    **{f"{shared}.py": list(METHODS) for shared in SHARED},
    "research/experiment/plan.py": [],  # a result holds its outcome
    "research/report/__init__.py": [],
}
SHOWN = f"""
from pathlib import Path
import equipoise as eq
from equipoise.research.experiment.provenance import code_digest
names, package = {METHODS}, Path(eq.__file__).parent
before = [code_digest(name) for name in names]
print(*before)
for edited in {list(EDITS)}:
    text = (package / edited).read_text()
    (package / edited).write_text(text + "# edited")
    print(*(name for name, digest in zip(names, before) if code_digest(name) != digest))
    (package / edited).write_text(text)
"""


def test_an_edit_changes_the_digests_of_the_methods_that_depend_on_it(tmp_path: Path) -> None:
    package = tmp_path / "equipoise"
    shutil.copytree(Path(eq.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    python = [sys.executable, "-c", SHOWN]
    environment = {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(python, capture_output=True, text=True, check=True, env=environment)
    digests, *changed = (row.split() for row in done.stdout.splitlines())
    assert digests == list(map(code_digest, METHODS))  # wherever it is installed
    assert all(len(digest) == 12 for digest in digests)
    assert dict(zip(EDITS, changed, strict=True)) == EDITS


def test_a_method_that_wraps_another_depends_on_its_code() -> None:
    digests = {code_digest("rdumb", {"base": base}) for base in ("eta", "tent", "t3a")}
    assert len({code_digest("rdumb"), *digests}) == 4


IMPORTING = METHOD.replace('name = "mine"', 'name = "mine of provenance"').replace
FILES = {
    # Beside the method's file, also where a function imports.
    "own_method.py": IMPORTING("import time", "import time, torch, near_own"),
    "near_own.py": "def later():\n    from far_own import number\n    return number\n",
    "far_own.py": "number = 1\n",
    "unrelated.py": "",
    # A package with a relative import.
    "own_package/__init__.py": "",
    "own_package/inner/__init__.py": "",
    "own_package/inner/method.py": IMPORTING("import time", "import time\nfrom .. import used"),
    "own_package/used.py": "factor = 1\n",
    # Packages around an imported module: their files run with it.
    "own_with_packages.py": IMPORTING("import time", "import time, around.deep.leaf"),
    "around/__init__.py": "from . import beside\n",
    "around/beside.py": "",
    "around/deep/__init__.py": "",
    "around/deep/leaf.py": "",
}


@pytest.mark.parametrize(
    ("module", "depends_on"),
    [
        ("own_method", ["own_method", "near_own", "far_own"]),
        (
            "own_package.inner.method",
            ["own_package/inner/method", "own_package/used", "own_package/__init__"],
        ),
        ("own_with_packages", ["around/beside", "around/__init__", "around/deep/__init__"]),
    ],
)
def test_a_method_of_ones_own_depends_on_the_files_of_its_project(
    module: str, depends_on: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    __import__(module)
    seen = [code_digest("mine of provenance")]
    for edited in (*depends_on, "unrelated"):
        file = tmp_path / f"{edited}.py"
        file.write_text(file.read_text() + "# edited\n")
        seen.append(code_digest("mine of provenance"))
    assert len(set(seen)) == 1 + len(depends_on)
    assert seen[-1] == seen[-2]


@pytest.mark.parametrize("place", ["<stdin>", None])
def test_a_method_without_a_file_is_refused(place: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    # At a prompt the module has the file "<stdin>", in a notebook none.
    typed = ModuleType("typed_by_hand")
    if place is not None:
        typed.__file__ = place
    monkeypatch.setitem(sys.modules, "typed_by_hand", typed)
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    exec(METHOD.replace('name = "mine"', 'name = "mine by hand"'), vars(typed))
    with pytest.raises(eq.errors.OptionError, match=r"expected a method in a file.*mine by hand"):
        code_digest("mine by hand")


def test_a_method_of_ones_own_depends_on_the_methods_whose_parts_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = METHOD.replace(
        "import time\n", "import time\n\nfrom equipoise.methods.roid import soft_likelihood_ratio\n"
    )
    assert text != METHOD
    path = tmp_path / "mine.py"
    path.write_text(text)
    (name,) = methods_of(str(path))
    read: list[Path] = []
    monkeypatch.setattr(provenance, "_digest", read.extend)
    for installed in (set(), {tmp_path}):  # a file alone in site-packages, too
        monkeypatch.setattr(provenance, "_INSTALLED", installed)
        read.clear()
        code_digest(name)
        assert {path, Path(eq.__file__).parent / "methods" / "roid.py"} <= set(read)
