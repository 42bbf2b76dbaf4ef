"""The hash of a method's code: every file that its answers depend on, and no other."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import equipoise as eq
from equipoise import registry
from equipoise.research.experiment.modules import load_modules
from equipoise.research.experiment.provenance import code_digest

from .own import METHOD

METHODS = ("tent", "eta", "eata", "source")
SHARED = [
    "adapter",
    "methods/parts/batch_norm",
    "calibration/temper",
    "metrics/__init__",
    "rehearsal/rehearse",
]
SHARED += [f"research/experiment/{part}" for part in ("adapting", "rehearsals", "repeatable")]
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


def test_a_method_that_runs_another_one_depends_on_its_code() -> None:
    digests = {
        code_digest("rdumb"),
        *(code_digest("rdumb", {"base": base}) for base in ("eta", "tent", "t3a")),
    }
    assert len(digests) == 4


def test_a_method_of_ones_own_depends_on_the_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file, near, far = (tmp_path / f"{name}.py" for name in ("own_method", "near_own", "far_own"))
    body = METHOD.replace('name = "mine"', 'name = "mine of provenance"')
    file.write_text(body.replace("import time", "import time, torch, near_own"))
    near.write_text("def later():\n    from far_own import number\n    return number\n")
    far.write_text("number = 1\n")
    (tmp_path / "unrelated.py").write_text("")
    load_modules([str(file)])
    seen = [code_digest("mine of provenance")]
    for edited in (file, near, far):
        edited.write_text(edited.read_text() + "# edited\n")
        seen.append(code_digest("mine of provenance"))
    assert len(set(seen)) == 4
    (tmp_path / "unrelated.py").write_text("# edited\n")
    assert code_digest("mine of provenance") == seen[-1]


def test_relative_imports_of_a_package_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for folder in ("own_package", "own_package/inner"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    used = tmp_path / "own_package" / "used.py"
    used.write_text("factor = 1\n")
    body = METHOD.replace('name = "mine"', 'name = "mine in a package"')
    (tmp_path / "own_package" / "inner" / "method.py").write_text(
        body.replace("import time", "import time\nfrom .. import used")
    )
    __import__("own_package.inner.method")
    before = code_digest("mine in a package")
    used.write_text("factor = 2\n")
    assert code_digest("mine in a package") != before


def test_packages_around_an_imported_module_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    inner = tmp_path / "around" / "deep"
    inner.mkdir(parents=True)
    files = [tmp_path / "around" / "beside.py", *(folder / "__init__.py" for folder in (inner.parent, inner))]
    for file in (*files, inner / "leaf.py"):
        file.write_text("")
    files[1].write_text("from . import beside\n")  # runs when the leaf is imported
    body = METHOD.replace('name = "mine"', 'name = "mine with packages"')
    (tmp_path / "own_with_packages.py").write_text(
        body.replace("import time", "import time, around.deep.leaf")
    )
    load_modules([str(tmp_path / "own_with_packages.py")])
    seen = [code_digest("mine with packages")]
    for file in files:
        file.write_text(file.read_text() + "# edited\n")
        seen.append(code_digest("mine with packages"))
    assert len(set(seen)) == 4


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


def test_a_method_that_wraps_another_depends_on_its_code() -> None:
    plain, eta, tent = (code_digest("rdumb", given) for given in ({}, {"base": "eta"}, {"base": "tent"}))
    assert len({plain, eta, tent}) == 3
