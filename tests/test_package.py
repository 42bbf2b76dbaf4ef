"""The package as a whole: the cost of an import, the direction of imports, one module for a public name."""

import ast
import json
import operator
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq

SOURCE = Path(eq.__file__).parent

WINGS = {"production", "research", "testing", "cli"}
"""Folders that the library never imports. No wing imports another, but the command line sees all."""

# From what everything needs to what needs everything: a module imports only from lines above its own.
ORDER = [
    {"version", "errors"},
    {"functional", "files", "json_form", "options"},
    {"distributed"},
    {"network"},
    {"calibration", "metrics", "streams"},
    {"core", "estimators"},
    {"adapter", "registry", "probabilities"},
    {"evaluation", "methods", "factory"},
    {"rehearsal"},
    {"recommendation"},
    WINGS - {"cli"},
    {"cli"},
    {"__main__", "__init__"},
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}

DATA_SETS = [
    "demo",
    "demo-c",
    "digits",
    "digits-c",
    "drift",
    "office-home",
    "office-home-c",
    "pacs",
    "pacs-c",
]
DATA_SETS += ["tiny-imagenet-c"]

# The only public names that two modules define, each with its reason.
DEFINED_TWICE = {
    "entropy": "eq.functional.entropy is per sample, eq.metrics.entropy the mean: both are public",
}


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


def test_imports_go_one_way_and_wings_stand_apart() -> None:
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        assert part in RANK, f"{part}: say in ORDER where it belongs"
        for other in imported(path) - {part}:
            assert RANK[other] < RANK[part], f"{path} imports {other}, which does not come before {part}"


def test_the_parts_of_an_adapter_are_reached_by_the_adapter_and_by_tests_of_a_step() -> None:
    for path in SOURCE.rglob("*.py"):
        part, text = path.relative_to(SOURCE).parts[0].removesuffix(".py"), path.read_text()
        assert part in {"core", "adapter"} or "._respond" not in text, f"{path}: the adapter lacks a fact"
        assert part == "testing" or ".responder" not in text, f"{path}: the adapter lacks a fact"


def test_the_root_of_the_package_has_few_modules() -> None:
    modules = sorted(path.name for path in SOURCE.glob("*.py"))
    assert len(modules) <= 12, f"move some of {', '.join(modules)} into a folder"


FRESH = """
import sys, time, json

start = time.process_time()
import numpy, safetensors.torch, torch, tqdm
core = time.process_time() - start


class Noting:
    names = []

    def find_spec(self, name, path=None, target=None):
        if name == "torchmetrics":  # which imports for seconds
            self.names.append(name)
            raise ModuleNotFoundError("not now", name=name)


def tried(action):
    Noting.names.clear()
    try:
        action()
    except ModuleNotFoundError:
        pass
    return list(Noting.names)


sys.meta_path.insert(0, Noting())
before, start, found = set(sys.modules), time.process_time(), {}
import equipoise as eq
eq.create, eq.estimators, eq.recommend, eq.rehearse
found["time beside the core"] = (time.process_time() - start) / core
found["data at once"] = "equipoise.research.data" in sys.modules
for name in ("functional", "metrics", "models", "errors"):
    getattr(eq, name)
found["metrics"] = sorted(set(eq.metrics.__all__) - set(dir(eq.metrics)))
found["before use"] = list(Noting.names)
found["third"] = sorted({name.split(".")[0] for name in set(sys.modules) - before})
found["in use"] = [tried(lambda: eq.metrics.Accuracy()), tried(lambda: eq.metrics.ExpectedCalibrationError())]
for name in ("sklearn", "scipy", "mlxtend", "matplotlib", "torchvision", "timm", "typer", "rich", "pydantic"):
    sys.modules[name] = None
import equipoise.research.data
found["data sets"] = equipoise.research.data.list_data_sets()
found["data"] = all(hasattr(equipoise.research.data, name) for name in equipoise.research.data.__all__)
print(json.dumps(found))
"""


def in_a_process(program: str) -> Any:
    """What a program prints as JSON, in a process that has just started."""
    return json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)


@pytest.fixture(scope="module")
def fresh() -> dict[str, Any]:
    """The imports of such a process; one for all tests, as torch is seconds of each."""
    found: dict[str, Any] = in_a_process(FRESH)
    return found


def test_import_needs_only_the_core_and_is_quick(fresh: dict[str, Any]) -> None:
    extras = {"torchmetrics", "torchvision", "timm", "matplotlib", "scipy", "sklearn", "mlxtend", "typer"}
    assert not set(fresh["third"]) & (extras | {"rich", "PIL", "pandas"})
    assert fresh["time beside the core"] < 0.6  # 0.2, of one second or more


def test_metric_classes_load_torchmetrics_on_first_use(fresh: dict[str, Any]) -> None:
    assert not fresh["metrics"]  # dir() has all public names before
    assert not fresh["before use"]
    assert fresh["in use"] == [["torchmetrics"]] * 2


def test_data_sets_load_on_first_use_without_the_packages_of_single_ones(fresh: dict[str, Any]) -> None:
    assert not fresh["data at once"]
    assert fresh["data sets"] == DATA_SETS
    assert fresh["data"]


def test_import_alone_loads_nothing_and_says_what_there_is() -> None:
    found = in_a_process(
        "import json, sys; before = set(sys.modules); import equipoise as eq; names = dir(eq);"
        "print(json.dumps([sorted(set(sys.modules) - before), names]))"
    )
    ours = {name for name in found[0] if name.startswith("equipoise")}
    assert ours == {"equipoise", "equipoise.version"}
    assert "torch" not in found[0]
    assert set(eq.__all__) <= set(found[1])


@pytest.mark.parametrize(
    "first",
    [
        "from equipoise.registry import list_methods; print(json.dumps(list_methods()))",
        "from equipoise.registry import method_class; print(json.dumps([method_class('tent').name]))",
        "import equipoise; print(json.dumps(equipoise.list_methods()))",
        "from equipoise import *; print(json.dumps(list_methods()))",
        "import equipoise; print(json.dumps([equipoise.methods.tent.Tent.name]))",
    ],
)
def test_methods_are_known_whatever_is_imported_first(first: str) -> None:
    assert "tent" in in_a_process(f"import json; {first}")


def test_the_names_of_shipped_methods_are_taken_before_any_is_loaded() -> None:
    found = in_a_process("""
import json
from equipoise.core.method import Method
from equipoise.registry import register
try:
    register(type("Mine", (Method,), {"name": "tent"}))
except ValueError as error:
    print(json.dumps(str(error)))
""")
    assert "the name 'tent' is taken by equipoise.methods.tent" in found


def test_names_are_loaded_from_where_type_checkers_see_them() -> None:
    (block,) = [
        node for node in ast.parse((SOURCE / "__init__.py").read_text()).body if isinstance(node, ast.If)
    ][:1]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert seen.keys() | {"__version__"} == set(eq.__all__)
    for name, module in seen.items():
        expected = (
            import_module(f"equipoise.{name}")
            if module == "equipoise"
            else getattr(import_module(str(module)), name)
        )
        assert getattr(eq, name) is expected


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Poize'"):
        operator.attrgetter("Poize")(eq)


def test_public_names_are_there() -> None:
    for name in eq.__all__:
        assert hasattr(eq, name)
    files = (SOURCE / "methods").glob("[!_]*.py")
    assert eq.list_methods() == sorted(path.stem for path in files)  # name = registry key = file name


def defined(path: Path) -> set[str]:
    """The public top-level functions, classes and assigned names of a file."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = (part for target in targets for part in ast.walk(target))
            names |= {part.id for part in found if isinstance(part, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_a_public_name_is_defined_in_one_module() -> None:
    modules: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for name in defined(path):
            modules.setdefault(name, []).append(str(path.relative_to(SOURCE)))
    twice = {name: paths for name, paths in modules.items() if len(paths) > 1}
    wrong = [f"{name}: {', '.join(twice[name])}" for name in sorted(twice.keys() - DEFINED_TWICE.keys())]
    assert not wrong, "defined in several modules, rename or import:\n" + "\n".join(wrong)
    assert twice.keys() == DEFINED_TWICE.keys(), (
        "a name of DEFINED_TWICE is defined once now: remove it there"
    )


def test_only_the_command_line_imports_typer() -> None:
    for path in SOURCE.rglob("*.py"):
        uses = any(
            line.lstrip().startswith(("import typer", "from typer")) for line in path.read_text().splitlines()
        )
        assert not uses or path.parent.name == "cli", f"{path.relative_to(SOURCE)} imports typer"
