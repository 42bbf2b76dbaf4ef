"""The package as a whole: what an import costs, and which way the imports go."""

import ast
import subprocess
import sys
from pathlib import Path

import equipoise as eq

SOURCE = Path(eq.__file__).parent

# From what everything needs to what needs everything: a module imports only from lines above its own.
ORDER = [
    {"version", "errors"},
    {"functional", "files", "options", "configured"},
    {"distributed"},
    {"network"},
    {"calibration", "metrics", "models", "data"},
    {"core"},
    {"engine"},
    {"adapter"},
    {"registry", "tempered"},
    {"methods", "rehearsing"},
    {"bench", "recipes"},
    {"report"},
    {"demo"},
    {"cli"},
    {"__main__", "__init__"},
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def imported(path: Path) -> set[str]:
    """The top-level parts of equipoise that a file imports, wherever in the file."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        parts |= {name.split(".")[1] for name in names if name.startswith("equipoise.")}
    return parts & RANK.keys()


def test_imports_go_one_way() -> None:
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        assert part in RANK, f"{part}: say in ORDER where it belongs"
        for other in imported(path) - {part}:
            assert RANK[other] < RANK[part], f"{path.name} imports {other}, which comes after {part}"


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_import_needs_only_the_core_and_is_quick() -> None:
    code = """
import sys, time, torch
before = set(sys.modules); start = time.perf_counter()
import equipoise as eq
seconds = time.perf_counter() - start
for name in ("functional", "metrics", "models", "errors"):
    getattr(eq, name)
third = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(seconds < 1.0, sorted(third & {"torchmetrics", "torchvision", "timm", "matplotlib", "scipy", "sklearn",
                                     "mlxtend", "typer", "rich", "PIL", "pandas"}))
"""
    assert python(code) == "True []"


def test_metric_classes_load_on_first_use() -> None:
    code = """
import sys, equipoise as eq
before = "torchmetrics" in sys.modules
eq.metrics.ExpectedCalibrationError()
print(before, "torchmetrics" in sys.modules)
"""
    assert python(code) == "False True"


def test_public_names_are_there() -> None:
    for name in eq.__all__:
        assert hasattr(eq, name)
    assert eq.list_methods() == sorted(eq.list_methods())
    assert eq.list_methods() == ["dec", "eata", "eta", "norm", "poise", "sotta", "source", "t3a", "tent"]
    for name in eq.list_methods():
        assert (SOURCE / "methods" / f"{name}.py").is_file()  # name = registry key = file name
