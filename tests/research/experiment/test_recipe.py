"""Recipes: the paper's settings as data, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from equipoise.errors import RecipeError
from equipoise.registry import list_methods, method_class
from equipoise.research.data import open_data_set
from equipoise.research.data.image_stream import IMAGE_KINDS
from equipoise.research.experiment.plan import joined_shifts, resolved_order_options
from equipoise.research.experiment.recipe import list_recipes, load_recipe, recipe_text
from equipoise.research.experiment.sweep import picked_shifts

from .toy import toy_recipe

PAPER = {  # typed in from the paper's appendix: epochs, t ranges, ETA's epsilon, SoTTA's C0
    "pacs": (15, {"efficientnet_b0": (1.0, 3.0), "mobilenet_v1": (1.0, 3.0)}, 0.6, 0.33),
    "office-home": (15, {"efficientnet_b0": (1.0, 1.75), "mobilenet_v1": (1.2, 2.75)}, 0.1, 0.33),
    "digits": (5, {"smallcnn": (1.2, 2.75)}, 0.4, 0.33),
    "tiny-imagenet-c": (25, {"efficientnet_b0": (1.0, 2.5), "mobilenet_v1": (1.5, 3.0)}, 0.125, 0.66),
}


@pytest.mark.parametrize("name", list(PAPER))
def test_recipes_have_the_papers_settings(name: str) -> None:
    recipe = load_recipe(name)
    recipe.check_methods()
    epochs, ranges, epsilon, confidence = PAPER[name]
    assert recipe.data == name
    assert recipe.seeds == (0, 1, 2)
    assert recipe.training.epochs == epochs
    assert {b: (entry.t_min, entry.t_max) for b, entry in recipe.backbones.items()} == ranges
    small = name == "digits"
    assert (recipe.training.optimizer, recipe.training.learning_rate) == (
        ("adam", 1e-3) if small else ("rmsprop", 2e-4)
    )
    assert recipe.methods["eta"].options == {"margin": 0.4, "epsilon": epsilon}
    assert recipe.methods["sotta"].options == {"confidence": confidence, "rho": 0.05, "capacity": 64}
    assert recipe.methods["t3a"].options == {"supports": None}  # M = infinity
    batches = {label: entry.batch_size for label, entry in recipe.methods.items()}
    assert batches["dec"] == batches["dec-released"] == batches["poise"] == 50
    assert (batches["eta"], batches["t3a"], batches["sotta"]) == (64, 32, 64)
    assert batches["tent"] == (200 if small else 64)
    sizes = {entry.input_size for entry in recipe.backbones.values()}
    assert sizes == ({256} if name == "tiny-imagenet-c" else {None})


SHIPPED = {name for name in list_methods() if method_class(name).__module__.startswith("equipoise.methods.")}
STREAMS = sorted(IMAGE_KINDS.keys() - {"shuffled", "sorted", "recorded"})
"""Every kind of stream in which the domain changes; each has a recipe of its name."""


def test_shipped_recipes_are_listed_and_explain_themselves() -> None:
    of_data = ["demo", "digits", "drift", "office-home", "pacs", "tiny-imagenet-c"]
    assert list_recipes() == sorted([*of_data, *STREAMS])
    for name in list_recipes():
        recipe = load_recipe(name)
        recipe.check_methods()
        assert recipe.about
        assert recipe_text(name).startswith("# ")
        rehearsed = {label for label, entry in recipe.methods.items() if entry.rehearsed}
        assert rehearsed == (set(recipe.methods) - {"memo"} if name in STREAMS else {"poise"})
        assert "rehearsed" in recipe.temperings
        assert set(recipe.protocols) == ({"online"} if recipe.trace else {"online", "after-pass"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sedes": [0]}, "sedes"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [-1]}, "seeds.0"),
        ({"protocols": ["offline"]}, "protocols.0"),
        ({"order": "random"}, "order"),
        ({"methods": {}}, "methods"),
        ({"methods": {"tent": {"options": {"learning_rate": "1e-4"}}}}, "write a dot, as in 1.0e-4"),
        ({"methods": {"tent": {"options": {"learning_rate": float("inf")}}}}, "finite number"),
        ({"seeds": [2**40]}, "seeds.0"),
        ({"training": {"optimizer": "lion"}}, "training.optimizer"),
        (
            {"training": {"optimizer": "adam", "learning_rate": 0.1, "epochs": 1, "batch_size": 1}},
            "training.batch_size: .*greater than or equal to 2",
        ),
        ({"backbones": {"smallcnn": {"t_min": 3, "t_max": 1}}}, "t_min <= t_max"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    content = {**toy_recipe().model_dump(mode="json"), **changes}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(RecipeError, match=said):
        load_recipe(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not a readable recipe"),
        (b"about: \xff\n", "not a readable recipe"),  # UTF-8 only
        (b"- 1\n", "expected a mapping"),
        (b"a: [", "not YAML"),
        (b"a: !!python/object/apply:os.system [true]\n", "not YAML"),
        (b"data: 1\n", r"mine\.yml: .*data"),  # the file is named
    ],
)
def test_files_that_are_no_recipes(text: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(RecipeError, match=said):
        load_recipe(str(path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": {"magic": {}}}, "no method 'magic'; there are bn_alpha"),
        ({"methods": {"tent": {"options": {"rho": 0.1}}}}, r"methods\.tent: no option 'rho'"),
        # What is set for all methods is no option of one.
        (
            {"methods": {"tent": {"options": {"tempering": "mean"}}}},
            "no option 'tempering' here.*`temperings`",
        ),
        ({"temperings": ["rehearsed"]}, "none of the methods has `rehearsed: true`"),
    ],
)
def test_methods_and_options_are_checked(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        toy_recipe(**changes).check_methods()


def test_narrowed_keeps_what_was_not_named() -> None:
    recipe = toy_recipe()
    assert recipe.narrowed() == recipe
    less = recipe.narrowed(methods=["dec", "norm"], seeds=[3], temperings=["median"], epochs=7)
    assert list(less.methods) == ["dec", "norm"]
    assert less.methods["dec"] == recipe.methods["dec"]
    assert less.methods["norm"].options == {}  # not in the recipe: with its defaults
    assert (less.seeds, less.temperings, less.training.epochs) == ((3,), ("median",), 7)
    assert less.backbones == recipe.backbones
    other = recipe.narrowed(backbones=["test_resnet"])
    assert list(other.backbones) == ["test_resnet"]
    wrong: dict[str, Any]
    for wrong in ({"methods": ["magic"]}, {"temperings": ["warm"]}, {"seeds": [-1]}, {"epochs": 0}):
        with pytest.raises(RecipeError):
            recipe.narrowed(**wrong)
    two = toy_recipe(backbones={"smallcnn": {"t_max": 2.5}, "test_resnet": {"t_max": 1.5}})
    ranges = {
        name: b.t_max for name, b in two.narrowed(backbones=["test_resnet", "test_vit"]).backbones.items()
    }
    assert ranges == {"test_resnet": 1.5, "test_vit": 2.5}  # the second as the first of the recipe


def test_a_range_may_be_one_number() -> None:
    recipe = toy_recipe(backbones={"smallcnn": {"t_min": 2, "t_max": 2}})
    assert recipe.backbones["smallcnn"].t_min == recipe.backbones["smallcnn"].t_max == 2


def test_what_is_named_twice_is_done_once() -> None:
    recipe = toy_recipe(seeds=[2, 0, 2], protocols=["online", "online"], temperings=["mean", "none", "mean"])
    assert (recipe.seeds, recipe.protocols) == ((2, 0), ("online",))
    assert recipe.temperings == ("mean", "none")
    assert recipe.narrowed(seeds=[1, 1]).seeds == (1,)


def test_a_recipe_of_ones_own_by_either_ending(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(yaml.safe_dump(toy_recipe(modules=["a.py"]).model_dump(mode="json")))
    assert load_recipe(str(path)).modules == (str(tmp_path.resolve() / "a.py"),)


def test_a_stream_runs_on_the_recipe_of_a_data_set() -> None:
    base, stream = load_recipe("digits"), load_recipe("recurring")
    assert (stream.data, stream.order, stream.order_options) == ("digits-c", "recurring", {"passes": 20})
    assert (stream.training, stream.backbones, stream.seeds) == (base.training, base.backbones, base.seeds)
    assert stream.temperings == ("none", "rehearsed")
    assert (stream.trace, stream.protocols) == ("bins", ("online",))
    for label, entry in (base.methods | base.stream_methods).items():
        assert stream.methods[label] == entry.model_copy(update={"rehearsed": label != "memo"})
    other = load_recipe("recurring", on="tiny-imagenet-c")
    assert (other.data, other.training) == ("tiny-imagenet-c", load_recipe("tiny-imagenet-c").training)
    assert load_recipe("noisy", on="pacs").data == "pacs-c"


@pytest.mark.parametrize("name", STREAMS)
def test_the_recipe_of_a_stream_joins_its_domains_in_the_order_of_its_name(name: str) -> None:
    recipe = load_recipe(name, on="demo")
    options = resolved_order_options(recipe.order, recipe.order_options)
    assert (recipe.order, recipe.data) == (name, "demo-c")
    assert recipe.order_options.keys() >= {"stretch", "ratio"} & options.keys()  # so that a copy shows it
    shifts = picked_shifts(open_data_set(recipe.data, Path()).shifts, (), recipe.tiers)
    domains = [stream.domains for stream in joined_shifts(shifts, recipe.order, targets=3)]
    if name == "gradual":
        assert domains == [tuple(f"tier {tier}" for tier in range(1, 6))] * 45  # 3 targets, 15 corruptions
    else:
        assert [len(names) for names in domains] == [1 if name == "changing" else 16] * 3


def write(folder: Path, name: str, **content: object) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_a_stream_of_ones_own_runs_on_a_recipe_beside_it(tmp_path: Path) -> None:
    base = load_recipe("demo").model_dump(mode="json")
    write(
        tmp_path, "base", **{**base, "data": "mine", "modules": ["mine.py"], "stream_methods": {"norm": {}}}
    )
    path = write(tmp_path, "stream", about="mine", on="base.yaml", order="noisy", tiers=[1], seeds=[7])
    recipe = load_recipe(path)
    assert (recipe.data, recipe.order, recipe.tiers, recipe.seeds) == ("mine", "noisy", (1,), (7,))
    assert recipe.modules == (str(tmp_path / "mine.py"),)
    assert recipe.methods["norm"].rehearsed


def test_methods_for_streams_are_run_on_streams_alone(tmp_path: Path) -> None:
    base = load_recipe("demo").model_dump(mode="json")
    more = {"slow": {"method": "tent", "batch_size": 7}}
    path = write(tmp_path, "base", **{**base, "stream_methods": more})
    assert "slow" not in load_recipe(path).methods
    assert load_recipe(path).narrowed(methods=["slow"]).methods["slow"].batch_size == 7
    assert load_recipe("continual", on=path).methods["slow"].batch_size == 7


def test_a_batch_size_belongs_to_a_stream_and_not_to_its_methods(tmp_path: Path) -> None:
    for name in STREAMS:
        assert load_recipe(name).batch_size == load_recipe(name, on="pacs").batch_size == 64
    assert load_recipe("digits").batch_size is None  # each method has its own
    path = write(tmp_path, "stream", about="mine", on="digits", order="noisy", batch_size=16)
    assert load_recipe(path).batch_size == load_recipe(path).narrowed(methods=["tent"]).batch_size == 16


def test_recipes_of_streams_rehearse_their_many_methods_on_few_images(tmp_path: Path) -> None:
    own = write(tmp_path, "stream", about="mine", on="digits", order="noisy")
    for name in (*STREAMS, own):
        assert (load_recipe(name).rehearsal.images, load_recipe(name).rehearsal.shifts) == (500, 16)


@pytest.mark.parametrize(
    ("name", "on", "said"),
    [
        ("mnist", None, "there are abrupt, changing, continual, correlated, demo, digits"),
        ("digits", "pacs", "digits is no recipe of a stream"),
        ("continual", "noisy", "expected the recipe of a data set to run on, got that of a stream"),
        ("continual", "cifar", "no recipe 'cifar'"),
    ],
)
def test_streams_run_on_data_sets_alone(name: str, on: str | None, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        load_recipe(name, on=on)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"order": "backwards"}, "order"),
        ({"batch_size": 0}, "batch_size"),
        ({"seeds": []}, "seeds: .*at least one"),
        ({"seeds": [-1]}, "seeds.0"),
    ],
)
def test_what_is_wrong_in_the_recipe_of_a_stream_is_named(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "stream", **{"about": "mine", "on": "digits", "order": "noisy", **changes})
    with pytest.raises(RecipeError, match=said):
        load_recipe(path)


def test_recipes_of_streams_run_every_method() -> None:
    for data in ("digits", "pacs", "office-home", "tiny-imagenet-c"):
        recipe = load_recipe("continual", on=data)
        recipe.check_methods()
        assert {entry.method or label for label, entry in recipe.methods.items()} >= SHIPPED
