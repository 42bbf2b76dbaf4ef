"""The set-up of .venv by the Makefile, with a uv, a pip and a venv that only note their arguments."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.support.waiting import HANG

ROOT = Path(__file__).parents[2]

UV = """#!{python}
import json, os, sys, time
with open("notes", "a") as notes:
    print("uv", *sys.argv[1:], file=notes)
with open("variables", "w") as file:
    json.dump(dict(os.environ), file)
os.mkdir("one-at-a-time")
time.sleep(float(os.environ.get("UV_SECONDS", "0")))
os.rmdir("one-at-a-time")
sys.exit(int(os.environ.get("UV_STATUS", "0")))
"""
# `python -m pip` and `python -m venv` find these in PYTHONPATH, before the real ones.
PIP = """
import os, shutil, sys
if sys.argv[1] == "config":
    print(os.environ.get("PIP_LISTS", ""))
    sys.exit(os.environ.get("PIP_CONFIG_ERROR"))
with open("notes", "a") as notes:
    print("pip", *sys.argv[1:], file=notes)
if sys.argv[-1] == "uv" and "PIP_HAS" in os.environ:
    shutil.copy(os.environ["PIP_HAS"], ".venv/bin/uv")
    sys.exit()
sys.exit(int(os.environ.get("PIP_STATUS", "0")))
"""
VENV = """
import os, sys
os.makedirs(".venv/bin")
os.makedirs(f".venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")
os.symlink(sys.executable, ".venv/bin/python")
open(".venv/bin/pip", "w").close()
with open("notes", "a") as notes:
    print("venv", *sys.argv[1:], file=notes)
"""
BY_UV = "uv pip install -c constraints.txt -e .[demo] --python .venv/bin/python --compile-bytecode"
BY_PIP = "pip install -c constraints.txt -e .[demo]"
OF_UV = "pip install --quiet -c constraints.txt uv"


class Clone:
    """A clone of the files that the set-up reads, and a machine whose only programs are those above.

    Attributes:
        folder: of the clone.
        variables: of the environment.
    """

    def __init__(self, folder: Path, uv: bool) -> None:
        self.folder = folder / "clone"
        for path in ("Makefile", "pyproject.toml", "constraints.txt", "tools/set_up.py"):
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.folder / path)
        programs = {"bin/uv" if uv else "uv": UV, "modules/pip.py": PIP, "modules/venv.py": VENV}
        for path, text in programs.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text.replace("{python}", sys.executable))
            (folder / path).chmod(0o755)
        self.variables = {"PATH": str(folder / "bin"), "PYTHONPATH": str(folder / "modules")}
        self._make = [str(shutil.which("make")), f"PYTHON={sys.executable}"]

    def make(self, *targets: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        command = [*self._make, *targets]
        return subprocess.run(
            command, cwd=self.folder, env={**self.variables, **variables}, capture_output=True, text=True
        )

    def start(self, *targets: str, **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self._make, *targets],
            cwd=self.folder,
            env={**self.variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def notes(self) -> list[str]:
        """What was run since these were asked for last."""
        file = self.folder / "notes"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def marks(self) -> set[str]:
        return {path.name for path in (self.folder / ".venv").glob(".*")}


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path, uv=True)


@pytest.fixture
def clone_without_uv(tmp_path: Path) -> Clone:
    return Clone(tmp_path, uv=False)


def test_uv_installs_a_stage_once_and_again_after_a_change(clone: Clone) -> None:
    done = clone.make(".venv/.demo")
    assert done.returncode == 0, done.stderr
    assert clone.notes() == ["venv .venv", BY_UV]
    assert "Setting up .venv with what the demo needs, mostly PyTorch: about a minute" in done.stdout
    assert ".venv is set up: 0 packages, " in done.stdout
    assert clone.marks() == {".demo"}
    assert "up to date" in clone.make(".venv/.demo").stdout
    assert clone.make("setup").returncode == 0
    assert clone.notes() == [BY_UV.replace("demo", "bench,serve,ray,docs,dev")]
    assert clone.marks() == {".demo", ".ready"}
    later = time.time() + 5
    os.utime(clone.folder / "pyproject.toml", (later, later))
    assert clone.make(".venv/.demo").returncode == 0
    assert clone.notes() == [BY_UV]


def test_all_targets_are_enough_for_the_demo(clone: Clone) -> None:
    assert clone.make("setup").returncode == 0
    assert "up to date" in clone.make(".venv/.demo").stdout


def test_uv_comes_by_pip_where_it_is_missing(clone_without_uv: Clone, tmp_path: Path) -> None:
    assert clone_without_uv.make(".venv/.demo", PIP_HAS=str(tmp_path / "uv")).returncode == 0
    assert clone_without_uv.notes() == ["venv .venv", OF_UV, BY_UV]
    assert clone_without_uv.make("setup").returncode == 0
    assert len(clone_without_uv.notes()) == 1  # it is there now


def test_pip_installs_where_uv_cannot_be_had(clone_without_uv: Clone) -> None:
    clone = clone_without_uv
    done = clone.make(".venv/.demo", PIP_STATUS="1")
    assert done.returncode != 0
    assert clone.notes() == ["venv .venv", OF_UV, BY_PIP]
    assert "No uv is on the PATH, and none could be installed: pip does it all" in done.stdout
    assert "the same make command goes on from there" in done.stderr
    assert clone.marks() == set()
    assert clone.make(".venv/.demo", PIP_HAS=str(clone.folder.parent / "uv")).returncode == 0
    assert clone.notes() == [OF_UV, BY_UV]


def test_pip_installs_the_same_versions_where_uv_fails(clone: Clone) -> None:
    done = clone.make(".venv/.demo", UV_STATUS="2")
    assert done.returncode == 0
    assert clone.notes() == ["venv .venv", BY_UV, BY_PIP]
    assert "uv failed, see above: pip goes on with the same versions" in done.stdout
    assert clone.marks() == {".demo"}


def test_uv_gets_the_index_of_pip(clone: Clone) -> None:
    lists = [
        "global.index-url='https://one.example/simple'",
        r"global.extra-index-url='\nhttps://two.example/simple\nhttps://three.example/simple'",
        "global.cert='/global.pem'",
        "install.cert='/install.pem'",
        "install.trusted-host='one.example two.example'",
        ":env:.find-links='/wheels /more'",
        ":env:.proxy='http://proxy.example:80'",
        "download.no-binary=':all:'",
    ]
    own = {"UV_DEFAULT_INDEX": "https://own.example/simple"}
    assert clone.make(".venv/.demo", PIP_LISTS="\n".join(lists), **own).returncode == 0
    told = json.loads((clone.folder / "variables").read_text())
    assert {name: told.get(name) for name in told if name.startswith(("UV_", "SSL_", "ALL_"))} == {
        "UV_DEFAULT_INDEX": "https://own.example/simple",
        "UV_INDEX": "https://two.example/simple https://three.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INSECURE_HOST": "one.example two.example",
        "SSL_CERT_FILE": "/install.pem",
        "ALL_PROXY": "http://proxy.example:80",
    }


@pytest.mark.parametrize(
    "lists",
    ["global.no-index='true'", ":env:.no-index='1'", "global.no-index='no'\ninstall.client-cert='/own.pem'"],
)
def test_pip_installs_where_uv_is_not_told_what_decides(clone: Clone, lists: str) -> None:
    done = clone.make(".venv/.demo", PIP_LISTS=lists)
    assert done.returncode == 0
    option = "client-cert" if "client" in lists else "no-index"
    assert f"pip is configured with {option}, which uv is not told: pip does it all" in done.stdout
    assert clone.notes() == ["venv .venv", BY_PIP]


def test_uv_installs_where_an_index_is_allowed_again(clone: Clone) -> None:
    assert clone.make(".venv/.demo", PIP_LISTS="global.no-index='true'\n:env:.no-index='0'").returncode == 0
    assert clone.notes() == ["venv .venv", BY_UV]


def test_the_older_variables_of_uv_count(clone: Clone) -> None:
    lists = "global.index-url='https://one.example/'\nglobal.extra-index-url='https://two.example/'"
    own = {"UV_INDEX_URL": "https://own.example/", "UV_EXTRA_INDEX_URL": "https://more.example/"}
    assert clone.make(".venv/.demo", PIP_LISTS=lists, **own).returncode == 0
    told = json.loads((clone.folder / "variables").read_text())
    assert {name: told[name] for name in told if name.startswith("UV_")} == own


def test_an_error_of_pip_is_shown(clone: Clone) -> None:
    done = clone.make(".venv/.demo", PIP_CONFIG_ERROR="pip.conf cannot be read")
    assert done.returncode != 0
    assert "pip.conf cannot be read" in done.stderr
    assert "config list failed, see above" in done.stderr


def test_one_set_up_runs_at_a_time(clone: Clone) -> None:
    done = clone.make("-j", ".venv/.demo", ".venv/.ready", UV_SECONDS="1")
    assert done.returncode == 0, done.stderr
    assert clone.notes() == ["venv .venv", BY_UV, BY_UV.replace("demo", "bench,serve,ray,docs,dev")]


def test_a_torch_that_is_there_is_used_and_stays_when_the_rest_is_added(clone: Clone) -> None:
    installed = distribution("torch")
    done = clone.make(".venv/.demo", TORCH="installed")
    assert done.returncode == 0, done.stderr
    assert f"torch {installed.version} in {installed.locate_file('')} is used" in done.stdout
    assert clone.notes() == ["venv .venv", "pip install -c .venv/constraints.txt -e .[demo]"]
    before = set((ROOT / "constraints.txt").read_text().splitlines())
    after = set((clone.folder / ".venv" / "constraints.txt").read_text().splitlines())
    assert {line.partition("==")[0] for line in before - after} <= {"torch", "torchvision"}
    assert not any(line.startswith("torchvision==") for line in after)
    assert f"torch=={installed.version}" in after
    (shared,) = (clone.folder / ".venv").glob("lib/*/site-packages/*.pth")
    assert (Path(shared.read_text().strip()) / "torch").is_dir()
    assert clone.make("setup").returncode == 0
    assert clone.notes() == ["pip install -c .venv/constraints.txt -e .[bench,serve,ray,docs,dev]"]


def test_a_torch_that_is_not_there_is_refused_with_the_cure(clone: Clone) -> None:
    done = clone.make(".venv/.demo", f"PYTHON={sys.executable} -S", TORCH="installed")
    assert done.returncode != 0
    assert "to have torch, but it has none: name a Python that has it by PYTHON=" in done.stderr
    assert clone.notes() == ["venv .venv"]
    assert clone.make(".venv/.demo").returncode == 0  # nothing of the refused one stays
    assert clone.notes() == [BY_UV]


def test_a_torch_is_chosen_when_the_environment_is_made(clone: Clone) -> None:
    assert clone.make(".venv/.demo").returncode == 0
    (packages,) = (clone.folder / ".venv").glob("lib/*/site-packages")
    (packages / "torch-2.10.0.dist-info").mkdir()
    assert "expected a .venv without a torch of its own" in clone.make("setup", TORCH="installed").stderr
    assert "expected TORCH=installed, or no TORCH" in clone.make("setup", TORCH="mine").stderr


def test_an_environment_of_another_python_is_refused(clone: Clone) -> None:
    assert clone.make(".venv/.demo").returncode == 0
    (packages,) = (clone.folder / ".venv").glob("lib/*")
    packages.rename(packages.with_name("python3.1"))
    done = clone.make("setup")
    assert "found one of another version: `make clean` removes it" in done.stderr
    assert clone.marks() == {".demo"}


def test_ctrl_c_leaves_no_mark_and_starts_no_pip(clone: Clone) -> None:
    with clone.start(".venv/.demo", UV_SECONDS=str(HANG)) as process:
        while process.poll() is None and not (clone.folder / "variables").exists():
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=HANG)
    assert process.returncode != 0
    assert "Stopped; the same make command goes on from there." in errors
    assert clone.notes() == ["venv .venv", BY_UV]
    assert clone.marks() == set()
