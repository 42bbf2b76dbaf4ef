"""Make .venv, or bring it up to date; the Makefile runs this before anything else is installed.

    python3 tools/set_up.py demo                   # what `make demo` needs
    python3 tools/set_up.py ready                  # what every target needs
    TORCH=installed python3 tools/set_up.py demo   # with the torch that this python3 has already

uv installs, from the package index that pip is configured for. Where uv cannot be had, fails, or is not told
what pip is configured with, pip installs the same versions.
"""

import os
import shutil
import subprocess
import sys
import time
from ast import literal_eval
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

VENV = Path(".venv")
PYTHON = str(VENV / "bin" / "python")
PACKAGES = VENV / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
SHARED = PACKAGES / "torch_already_there.pth"
"""The file that puts the folder of another torch at the end of the search path of .venv."""
CONSTRAINTS = Path("constraints.txt")

UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}
"""Options of pip, each with the variable by which uv, which does not read pip's files, is told it."""
OLDER_UV_VARIABLES = {"UV_DEFAULT_INDEX": "UV_INDEX_URL", "UV_INDEX": "UV_EXTRA_INDEX_URL"}
"""Variables of uv, each with an older one that says the same, and that uv reads only without the first."""
PIP_ALONE = ("no-index", "client-cert", "keyring-provider")
"""Options of pip that decide where packages come from, or who may have them, and that uv is not told."""
UNSET = ("", "0", "f", "false", "n", "no", "off", "disabled")
"""The values that turn one of these off."""


@dataclass(frozen=True)
class Stage:
    """A part of the set-up.

    Attributes:
        extras: of the package, with commas between them.
        told: what is installed, and how long that takes, in words.
        marks: empty files in .venv that say that it is done.
    """

    extras: str
    told: str
    marks: tuple[str, ...]


STAGES = {
    "demo": Stage("demo", "what the demo needs, mostly PyTorch: about a minute by uv", (".demo",)),
    "ready": Stage(
        "bench,serve,ray,docs,dev",
        "what all targets need: about two minutes by uv, less after the demo",
        (".demo", ".ready"),
    ),
}


def main() -> None:
    """Set up the stage that the command names; exit with the cure where a program fails."""
    names, torch = sys.argv[1:], os.environ.get("TORCH", "")
    if len(names) != 1 or names[0] not in STAGES:
        sys.exit(f"expected one of {', '.join(STAGES)}, got {' '.join(names) or 'nothing'}")
    if torch not in {"", "installed"}:
        sys.exit(f"expected TORCH=installed, or no TORCH for one that is downloaded, got TORCH={torch}")
    try:
        set_up(STAGES[names[0]], share=bool(torch))
    except subprocess.CalledProcessError as failed:
        sys.exit(f"{' '.join(failed.cmd)} failed, see above; the same make command goes on from there")
    except KeyboardInterrupt:
        sys.exit("Stopped; the same make command goes on from there.")


def set_up(stage: Stage, *, share: bool) -> None:
    """Install a stage into .venv, and leave its marks when everything is there.

    Args:
        stage: what to install.
        share: use the torch that the running Python has, and install none.
    """
    started = time.monotonic()
    say(f"Setting up .venv with {stage.told}.")
    if not (VENV / "bin" / "pip").exists():  # or where venv was stopped before pip was in it
        run(sys.executable, "-m", "venv", str(VENV))
    if not PACKAGES.is_dir():
        sys.exit(
            f"expected a .venv of {sys.executable} ({sys.version.split()[0]}), found one of another version: "
            "`make clean` removes it, PYTHON=... names the other"
        )
    torch = torch_to_share(wanted=share)
    if torch is None:
        install(stage.extras)
    else:
        install_beside(torch, stage.extras)
    for mark in stage.marks:
        (VENV / mark).touch()
    count = len(list(PACKAGES.glob("*.dist-info")))
    say(f".venv is set up: {count} packages, {time.monotonic() - started:.0f} s.")


def install(extras: str) -> None:
    """Install the clone with its extras in the versions of constraints.txt: by uv, or else by pip."""
    wanted = ["install", "-c", str(CONSTRAINTS), "-e", f".[{extras}]"]
    # Bytecode once, as pip does: PyTorch costs each process seconds without it.
    of_uv = ["--python", PYTHON, "--compile-bytecode"]
    configured = pip_options()
    alone = [option for option in PIP_ALONE if configured.get(option, "").lower() not in UNSET]
    uv = None if alone else shutil.which("uv") or own_uv()
    if alone:
        options = ", ".join(alone)
        say(f"pip is configured with {options}, which uv is not told: pip does it all, some minutes longer.")
    elif uv is None:
        say("No uv is on the PATH, and none could be installed: pip does it all, some minutes longer.")
    elif succeeds(uv, "pip", *wanted, *of_uv, variables=uv_variables(configured)):
        return
    else:
        say("uv failed, see above: pip goes on with the same versions, some minutes longer.")
    run(PYTHON, "-m", "pip", *wanted)


def own_uv() -> str | None:
    """The uv in .venv, installed there if it is missing; None if that fails."""
    uv = VENV / "bin" / "uv"
    if uv.exists() or succeeds(PYTHON, "-m", "pip", "install", "--quiet", "-c", str(CONSTRAINTS), "uv"):
        return str(uv)
    return None


def pip_options() -> dict[str, str]:
    """The options that `pip install` is configured with, by name."""
    lines = output(PYTHON, "-m", "pip", "config", "list").splitlines()
    configured = {key: value for key, _, value in (line.partition("=") for line in lines)}
    found = {}
    for section in ("global", "install", ":env:"):  # pip's order: a later one counts
        for key, value in configured.items():
            if key.startswith(f"{section}."):
                found[key.removeprefix(f"{section}.")] = str(literal_eval(value))
    return found


def uv_variables(configured: dict[str, str]) -> dict[str, str]:
    """The environment of uv, with what it has to know of pip's options; variables of its own count."""
    found = {}
    for option, variable in UV_VARIABLES.items():
        if option in configured:
            joint = "," if variable == "UV_FIND_LINKS" else " "
            found[variable] = joint.join(configured[option].split())
    for variable, older in OLDER_UV_VARIABLES.items():
        if older in os.environ:
            found.pop(variable, None)
    if "UV_INDEX" in found:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip: the best version of all indexes
    return {**found, **os.environ}


def torch_to_share(*, wanted: bool) -> Distribution | None:
    """The torch outside of .venv that .venv uses, chosen now or when it was made; None if it has its own."""
    if wanted and not SHARED.exists():
        if any(PACKAGES.glob("torch-*.dist-info")):
            sys.exit("TORCH=installed: expected a .venv without a torch of its own: `make clean` removes it")
        try:
            SHARED.write_text(f"{distribution('torch').locate_file('')}\n")
        except PackageNotFoundError:
            sys.exit(
                f"TORCH=installed: expected {sys.executable} to have torch, but it has none: name a Python "
                "that has it by PYTHON=path/to/python3, or leave TORCH=installed out and torch is downloaded"
            )
    if not SHARED.exists():
        return None
    folder = SHARED.read_text().strip()
    torch = next(iter(Distribution.discover(name="torch", path=[folder])), None)
    if torch is None:
        sys.exit(f"expected the torch that .venv was made with in {folder}, found none: `make clean` first")
    return torch


def install_beside(torch: Distribution, extras: str) -> None:
    """Install the clone with its extras by pip: unlike uv, it sees and keeps a torch outside of .venv."""
    say(f"torch {torch.version} in {torch.locate_file('')} is used, and none is installed.")
    of_torch = ("torch==", "torchvision==")
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith(of_torch)]
    constraints = VENV / CONSTRAINTS
    constraints.write_text("\n".join([*lines, f"torch=={torch.version}", ""]))
    run(PYTHON, "-m", "pip", "install", "-c", str(constraints), "-e", f".[{extras}]")


def run(*command: str) -> None:
    """Run a command, whose output is shown; CalledProcessError if it fails."""
    subprocess.run(command, check=True)


def succeeds(*command: str, variables: dict[str, str] | None = None) -> bool:
    """Run a command, whose output is shown, and tell whether it was done."""
    return subprocess.run(command, check=False, env=variables).returncode == 0


def output(*command: str) -> str:
    """What a command prints; CalledProcessError if it fails, and its errors are shown."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def say(line: str) -> None:
    """Print a line at once, before what the next program prints."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
