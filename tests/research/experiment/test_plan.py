"""Plans: what is shared, what is told apart, and by what."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from equipoise.errors import OptionError, RecipeError
from equipoise.methods.tent import Tent
from equipoise.research.data import DataSet, ImageKindName, Origin, Shift, Stored
from equipoise.research.experiment.plan import RunPlan, joined_shifts, make_plan
from equipoise.research.experiment.provenance import code_digest, content_key
from equipoise.research.experiment.recipe import Recipe
from equipoise.research.models import InitialWeights

from .toy import Toy, ToyTiers, toy_recipe


def plan(
    recipe: Recipe,
    data: DataSet | None = None,
    digests: str = "",
    weights: InitialWeights = None,
    limit: int | None = None,
    changed: Mapping[str, Stored] | None = None,
) -> list[RunPlan]:
    chosen = data or Toy(Path())
    parts = {part for shift in chosen.shifts for part in (*shift.sources, shift.stream)}
    stored = {part: Stored(Path(part), digests + part, 1, ()) for part in parts} | dict(changed or {})
    starts = dict.fromkeys(recipe.backbones, weights)
    return make_plan(recipe, chosen, chosen.shifts, stored, starts, limit)


class Made(Toy):
    """The same, but made here, and with a fourth class."""

    classes = ("top", "middle", "bottom", "none")

    def origin(self, part: str) -> Origin:
        return "made"


class HalfMade(ToyTiers):
    """One of its corruptions is made here."""

    def origin(self, part: str) -> Origin:
        return "made" if part.startswith("grain") else "official"


def cell_keys(runs: list[RunPlan]) -> set[str]:
    return {key for run in runs for key in run.cells}


def model_keys(runs: list[RunPlan]) -> set[str]:
    return {run.model.key for run in runs}


def test_every_combination_once() -> None:
    recipe = toy_recipe(seeds=[0, 1])
    runs = plan(recipe)
    assert len(runs) == 2 * 3 * 3  # seeds, targets, methods
    assert len(cell_keys(runs)) == 18 * 2 * 6  # protocols and temperings
    seen = {
        (c["target"], c["seed"], c["label"], c["protocol"], c["tempering"])
        for r in runs
        for c in r.cells.values()
    }
    assert len(seen) == 216
    assert {c["options"]["t_max"] for r in runs for c in r.cells.values()} == {2.75}


def test_a_batch_size_of_the_recipe_is_that_of_every_method() -> None:
    methods = {"source": {"batch_size": 16}, "tent": {"batch_size": 200}, "norm": {}}
    of_each = {run.any_cell["batch_size"] for run in plan(toy_recipe(methods=methods))}
    assert of_each == {16, 200, 50}
    runs = plan(toy_recipe(methods=methods, batch_size=64))
    assert {cell["batch_size"] for run in runs for cell in run.cells.values()} == {64}


def test_a_model_is_trained_once_for_all_methods_and_what_it_meets() -> None:
    assert len({run.model for run in plan(toy_recipe(seeds=[0, 1]))}) == 6
    tiers = plan(toy_recipe(data="toy-tiers"), ToyTiers(Path()))
    assert len({run.model for run in tiers}) == 1


ADAM = {"optimizer": "adam", "learning_rate": 1e-3, "epochs": 1, "batch_size": 16}
RANGE = {"weights": "random", "t_min": 1.2, "t_max": 2.75}
REHEARSED: dict[str, Any] = {"methods": {"poise": {"rehearsed": True}}, "temperings": ["rehearsed"]}
BATCHES_OF_8 = {method: {"batch_size": 8} for method in ("source", "tent", "dec")}


@pytest.mark.parametrize(
    ("one", "other", "another_model"),
    [
        ({}, {"training": {**ADAM, "epochs": 2}}, True),
        ({}, {"training": {**ADAM, "optimizer": "rmsprop"}}, True),
        ({}, {"training": {**ADAM, "learning_rate": 1e-4}}, True),
        ({}, {"training": {**ADAM, "batch_size": 8}}, True),
        ({}, {"seeds": [1]}, True),
        ({}, {"order": "sorted"}, False),
        ({}, {"backbones": {"smallcnn": {**RANGE, "t_min": 1.0}}}, False),
        ({}, {"backbones": {"smallcnn": {**RANGE, "input_size": 32}}}, True),
        ({}, {"backbones": {"test_resnet": RANGE}}, True),
        ({}, {"methods": BATCHES_OF_8}, False),
        (REHEARSED, {"methods": {"poise": {"rehearsed": True, "batch_size": 8}}}, False),
        (REHEARSED, {"methods": {"poise": {"rehearsed": True, "options": {"norm_momentum": 0.2}}}}, False),
        (REHEARSED, {"methods": {"poise": {"rehearsed": True, "options": {"falls_back": False}}}}, False),
        ({"order": "noisy"}, {"order_options": {"share": 0.1}}, False),
        ({"trace": "batches"}, {"trace": "bins"}, False),
        ({"trace": "bins"}, {"trace": None}, False),
    ],
)
def test_whatever_a_result_depends_on_changes_its_key(
    one: dict[str, Any], other: dict[str, Any], another_model: bool
) -> None:
    runs, changed = plan(toy_recipe(**one)), plan(toy_recipe(**{**one, **other}))
    assert len(cell_keys(runs)) == len(cell_keys(changed)) == (6 if one is REHEARSED else 3 * 3 * 2 * 6)
    assert not cell_keys(runs) & cell_keys(changed)
    assert bool(model_keys(runs) & model_keys(changed)) is not another_model


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {}),
        ({"methods": {"tent": {}}}, {"methods": {"tent": {"options": {"steps": 1}}}}),
        ({"order": "noisy"}, {"order": "noisy", "order_options": {"share": 0.2}}),
        ({"trace": True}, {"trace": "batches"}),
    ],
)
def test_the_same_plan_or_a_default_written_out_has_the_same_keys(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert cell_keys(plan(toy_recipe(**one))) == cell_keys(plan(toy_recipe(**other)))


def test_data_weights_and_limits_change_the_keys(tmp_path: Path) -> None:
    weights = tmp_path / "w"
    weights.write_bytes(b"w")
    recipe = toy_recipe()
    plans = [
        plan(recipe),
        plan(recipe, digests="other "),
        plan(recipe, weights=weights),
        plan(recipe, limit=5),
        plan(recipe, Made(Path())),
    ]
    keys = [cell_keys(runs) for runs in plans]
    assert len(set().union(*keys)) == sum(map(len, keys))
    models, other_images, other_weights, limited, other_classes = map(model_keys, plans)
    assert models == limited  # a limit that leaves all images trains the same
    assert not models & (other_images | other_weights | other_classes)


def test_only_rehearsed_methods_have_cells_of_that_tempering() -> None:
    plain = plan(toy_recipe(methods={"source": {}, "poise": {}}))
    runs = plan(toy_recipe(methods={"source": {}, "poise": {"rehearsed": True}}))
    new = cell_keys(runs) - cell_keys(plain)
    assert cell_keys(plain) < cell_keys(runs)  # the other cells are the same
    found = [cell for run in runs for key, cell in run.cells.items() if key in new]
    assert {(cell["label"], cell["tempering"]) for cell in found} == {("poise", "rehearsed")}
    assert len(found) == 3 * 2  # targets and protocols
    assert {key for run in runs for key in run.rehearsed().cells} == new


@pytest.mark.parametrize("size", [{"images": 500}, {"shifts": 16}])
def test_the_size_of_a_rehearsal_is_in_the_keys_of_its_cells_alone(size: dict[str, int]) -> None:
    methods = {"poise": {"rehearsed": True}}
    before = cell_keys(plan(toy_recipe(methods=methods)))
    runs = plan(toy_recipe(methods=methods, rehearsal=size))
    changed = {c["tempering"] for run in runs for key, c in run.cells.items() if key not in before}
    assert changed == {"rehearsed"}


def test_other_options_of_a_method_change_only_its_cells() -> None:
    one = plan(toy_recipe(methods={"source": {}, "tent": {}}))
    two = plan(toy_recipe(methods={"source": {}, "tent": {"options": {"learning_rate": 1e-4}}}))
    shared = cell_keys(one) & cell_keys(two)
    assert {c["label"] for r in one for k, c in r.cells.items() if k in shared} == {"source"}
    assert len(shared) == 36


def test_a_method_that_draws_random_numbers_gets_the_seed_unless_it_is_given_one() -> None:
    runs = plan(toy_recipe(seeds=[4], methods={"sotta": {}, "tent": {}}))
    seeds = {(run.any_cell["method"], run.any_cell["options"].get("seed")) for run in runs}
    assert seeds == {("sotta", 4), ("tent", None)}
    assert all("seed" not in run.any_cell["options"] for run in runs if run.any_cell["method"] == "tent")
    runs = plan(toy_recipe(seeds=[4], methods={"sotta": {"options": {"seed": 9}}}))
    assert {run.any_cell["options"]["seed"] for run in runs} == {9}


def test_only_what_is_missing_is_left() -> None:
    run = plan(toy_recipe())[0]
    first, *others = run.cells
    assert list(run.without([first]).cells) == others
    assert run.without(run.cells).cells == {}


def test_streams_are_told_apart_by_model_images_and_range() -> None:
    runs = plan(toy_recipe(seeds=[0, 1]))
    assert len({run.stream_key for run in runs}) == 6
    other = plan(toy_recipe(backbones={"smallcnn": {**RANGE, "t_min": 1.0}}))
    assert not {run.stream_key for run in runs} & {run.stream_key for run in other}


@pytest.mark.parametrize("order", ["mixed", "continual"])
def test_joined_orders_meet_all_targets_of_a_model_at_once(order: ImageKindName) -> None:
    shifts = ToyTiers(Path()).shifts
    joined = joined_shifts(shifts, order, 2)
    assert [(j.target, j.tier, j.streams) for j in joined] == [
        ("all", 1, ("dim/1", "grain/1")),
        ("all", 2, ("dim/2", "grain/2")),
    ]
    with pytest.raises(RecipeError, match="a model has only one"):
        joined_shifts(Toy(Path()).shifts, order, 3)
    some = joined_shifts(shifts, order, 15)  # fifteen targets, of which these two were picked
    assert {j.target for j in some} == {"dim+grain"}
    runs = plan(toy_recipe(data="toy-tiers", order=order), ToyTiers(Path()))
    assert {run.streams for run in runs} == {tuple(map(Path, j.streams)) for j in joined}


CORRUPTED = [
    Shift("usps", f"usps/{corruption}/{tier}" if corruption else "usps", ("mnist",), tier, corruption)
    for tier in (1, 2)
    for corruption in (None, "fog", "snow")
]


def test_gradual_streams_are_the_tiers_of_a_corruption_without_the_images_as_they_are() -> None:
    joined = joined_shifts(CORRUPTED, "gradual", 1)
    assert [j.streams for j in joined] == [("usps/fog/1", "usps/fog/2"), ("usps/snow/1", "usps/snow/2")]
    of_one = [shift for shift in CORRUPTED if shift.tier == 1]
    with pytest.raises(RecipeError, match="a target has only one: name at least two `tiers`"):
        joined_shifts(of_one, "gradual", 1)


def test_a_changing_stream_is_of_one_domain() -> None:
    joined = joined_shifts(Toy(Path()).shifts, "changing", 3)
    assert [len(j.streams) for j in joined] == [1, 1, 1]
    (alone,) = joined_shifts(CORRUPTED, "changing", 1)  # which corrupts the images itself
    assert (alone.target, alone.tier, alone.streams) == ("usps", None, ("usps",))
    with pytest.raises(RecipeError, match=r"corrupts images as they are, and the streams .* have none"):
        joined_shifts(ToyTiers(Path()).shifts, "changing", 2)


def test_corruptions_of_a_target_that_are_met_alone_are_told_apart() -> None:
    places = [(plan.target, plan.tier) for plan in joined_shifts(CORRUPTED, "shuffled", 1)]
    assert len(set(places)) == len(places) == 6


@pytest.mark.parametrize(
    ("data", "changes", "origins"),
    [
        (Toy, {}, {"official"}),
        (Made, {}, {"made"}),
        (Toy, {"order": "changing", "methods": {"source": {}}}, {"made"}),
        (HalfMade, {"data": "toy-tiers", "order": "mixed"}, {"made"}),  # joined with made images
        (HalfMade, {"data": "toy-tiers"}, {"dim": "official", "grain": "made"}),
    ],
)
def test_cells_say_where_their_images_come_from(
    data: type[DataSet], changes: dict[str, Any], origins: set[str] | dict[str, str]
) -> None:
    runs = plan(toy_recipe(**changes), data(Path()))
    found = {(cell["target"], cell["origin"]) for run in runs for cell in run.cells.values()}
    assert (found if isinstance(origins, dict) else {origin for _, origin in found}) == (
        set(origins.items()) if isinstance(origins, dict) else origins
    )


def test_defaults_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cell_keys(plan(toy_recipe(methods={"tent": {}})))
    monkeypatch.setattr(Tent, "default_rates", {"adam": 2e-3})
    assert not before & cell_keys(plan(toy_recipe(methods={"tent": {}})))


def test_options_are_those_that_the_method_uses() -> None:
    cell = plan(toy_recipe(methods={"tent": {"options": {"steps": 2, "engine": "eager"}}}))[0].any_cell
    own = {"learning_rate": 1e-3, "optimizer": "adam", "momentum": 0.9, "steps": 2, "parameters": "norm"}
    own |= {"norm_momentum": 0.1, "window": 16, "objective": "entropy"}
    shared = {"t_min": 1.2, "t_max": 2.75, "source_copy": "swapped", "engine": "eager"}
    assert cell["options"] == {**own, **shared}


def test_an_option_out_of_range_names_the_method() -> None:
    with pytest.raises(OptionError, match=r"tent: .*steps"):
        plan(toy_recipe(methods={"tent": {"options": {"steps": 0}}}))
    with pytest.raises(RecipeError, match="order_options: no passes of 'noisy' streams; there are share"):
        plan(toy_recipe(order="noisy", order_options={"passes": 2}))


def test_the_code_of_a_method_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = toy_recipe(methods={"source": {}, "tent": {}})
    before = cell_keys(plan(recipe))
    edited = {"tent": "edited"}
    monkeypatch.setattr(
        "equipoise.research.experiment.plan.code_digest",
        lambda name, _base: edited.get(name, code_digest(name)),
    )
    runs = plan(recipe)
    assert {run.any_cell["code"] for run in runs} == {"edited", code_digest("source")}
    shared = before & cell_keys(runs)
    assert {c["label"] for r in runs for k, c in r.cells.items() if k in shared} == {"source"}


def test_runs_say_how_many_files_were_left_out() -> None:
    torn = {"dark": ("a.png: torn",), "noisy": ("b.png: torn", "c.png: torn")}
    stored = {part: Stored(Path(part), part, 1, problems) for part, problems in torn.items()}
    runs = plan(toy_recipe(), changed=stored)
    assert {run.left_out for run in runs} == {3}  # of the stream, and of the training images


def test_other_images_of_a_stream_change_its_cells_and_not_its_model() -> None:
    recipe, data = toy_recipe(data="toy-tiers"), ToyTiers(Path())
    before = plan(recipe, data)
    after = plan(recipe, data, changed={"dim/2": Stored(Path("dim/2"), "other", 1, ())})
    assert model_keys(before) == model_keys(after)
    new = cell_keys(after) - cell_keys(before)
    met = {(c["target"], c["tier"]) for run in after for key, c in run.cells.items() if key in new}
    assert met == {("dim", 2)}
    assert len({run.stream_key for run in before}) == 4  # one model, four streams


class Alternating(Toy):
    """Two models that take turns in the list of shifts."""

    @property
    def shifts(self) -> list[Shift]:
        return [Shift(target, "dark", (source,)) for target in "abc" for source in ("plain", "noisy")]


def test_runs_of_one_model_are_next_to_each_other() -> None:
    for seeds in ([0], [0, 1]):
        runs = plan(toy_recipe(seeds=seeds), Alternating(Path()))
        keys = [run.model.key for run in runs]
        assert len(set(keys)) == 2 * len(seeds)
        assert keys == sorted(keys, key=keys.index)
        targets = [run.any_cell["target"] for run in runs if run.any_cell["label"] == "dec"]
        assert targets == list("abcabc") * len(seeds)


def test_keys_do_not_depend_on_the_order_and_refuse_what_is_not_json() -> None:
    assert content_key({"a": 1, "b": {"c": 2, "d": 3}}) == content_key({"b": {"d": 3, "c": 2}, "a": 1})
    assert content_key({"a": 1}) != content_key({"a": 2})
    with pytest.raises(ValueError, match="JSON"):
        content_key({"a": float("nan")})


def test_a_method_may_have_a_range_of_t_of_its_own() -> None:
    recipe = toy_recipe(methods={"source": {}, "dec": {"options": {"t_min": 1.5, "t_max": 4.0}}})
    ranges = set()
    for run in plan(recipe):
        options = run.any_cell["options"]
        ranges.add((run.any_cell["label"], run.own_range, options["t_min"], options["t_max"]))
    assert ranges == {("source", False, 1.2, 2.75), ("dec", True, 1.5, 4.0)}


class Stormy(Toy):
    """Each target as it is and in two kinds of weather, at two tiers."""

    @property
    def shifts(self) -> list[Shift]:
        clean = super().shifts
        return [
            Shift(s.target, f"{s.target}/{weather}/{tier}" if weather else s.target, s.sources, tier, weather)
            for tier in (1, 2)
            for s in clean
            for weather in (None, "fog", "snow")
        ]


def test_the_corruptions_of_a_target_are_the_domains_of_its_stream() -> None:
    runs = plan(toy_recipe(order="continual", methods={"source": {}}), Stormy(Path()))
    met = [(run.any_cell["target"], run.any_cell["tier"]) for run in runs]
    assert (met[:2], len(met)) == ([("plain", 1), ("plain", 2)], 3 * 2)
    assert {run.domains for run in runs} == {("as it is", "fog", "snow")}
    assert runs[0].streams == (Path("plain"), Path("plain/fog/1"), Path("plain/snow/1"))
    ups = plan(toy_recipe(order="gradual", methods={"source": {}}), Stormy(Path()))
    assert {run.domains for run in ups} == {("tier 1", "tier 2")}
    assert "plain, fog" in {run.any_cell["target"] for run in ups}


def test_one_domain_is_enough_for_bursts_of_classes_or_noise() -> None:
    for order in ("correlated", "noisy", "recurring", "imbalanced"):
        runs = plan(toy_recipe(order=order, methods={"source": {}}))
        assert {run.domains for run in runs} == {("plain",), ("dark",), ("noisy",)}


def test_results_of_plain_orders_have_none_of_the_new_fields() -> None:
    """Keys are hashes of cells: those of finished runs must stay."""
    for order in ("shuffled", "sorted", "recorded"):
        cell = plan(toy_recipe(order=order))[0].any_cell
        assert not cell.keys() & {"order_options", "domain_images", "trace"}
        assert cell["stream"] == content_key({"parts": ["plain"]})


def test_the_code_of_an_order_is_in_the_key_of_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [toy_recipe(order=order) for order in ("shuffled", "noisy")]
    shuffled, noisy = (cell_keys(plan(recipe)) for recipe in recipes)
    monkeypatch.setattr("equipoise.research.experiment.plan.order_digest", lambda: "changed")
    assert cell_keys(plan(recipes[0])) == shuffled
    assert not cell_keys(plan(recipes[1])) & noisy
