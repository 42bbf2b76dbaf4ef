"""Run a recipe: read the data, train the models, adapt them by every method, and store each cell once."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from equipoise.errors import DataError, RecipeError
from equipoise.research.data import Cache, DataSet, Reader, Shift, Stored, open_data_set
from equipoise.research.experiment.one_run import failed, run_cells
from equipoise.research.experiment.plan import ModelPlan, RunPlan, joined_shifts, make_plan
from equipoise.research.experiment.progress import RunProgress
from equipoise.research.experiment.recipe import Recipe
from equipoise.research.experiment.rehearsals import rehearsal_path, store_rehearsal
from equipoise.research.experiment.schema import CellResult, StreamSummary
from equipoise.research.experiment.store import CACHE, MODELS, Store
from equipoise.research.experiment.training import train_source_model
from equipoise.research.experiment.user_files import load_modules
from equipoise.research.experiment.workers import Workers, no_memory_kept
from equipoise.research.models import SMALL_CNN, InitialWeights, check_backbone

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class SweepSummary:
    """Counts of a finished sweep.

    Attributes:
        cells: all cells of the sweep.
        before: those that were done before.
        failed: those that failed.
        of_other_code: results of the same experiments in the file, made before by other code.
    """

    cells: int
    before: int
    failed: int
    of_other_code: int = 0


def run_recipe(
    recipe: Recipe,
    *,
    data: Path,
    out: Path,
    workers: Workers,
    progress: RunProgress,
    targets: Sequence[str] = (),
    tiers: Sequence[int] = (),
    limit: int | None = None,
    bad_files: Literal["refuse", "skip"] = "refuse",
) -> SweepSummary:
    """Run the missing cells of a recipe and write all files to `out`; `data` is only read.

    Args:
        recipe: the experiment.
        data: the folder with the data sets.
        out: the folder for results.jsonl, streams.jsonl, models/ and cache/.
        workers: run the trainings and the methods.
        progress: the display of progress.
        targets: only these domains ("svhn"), or these at one tier ("fog/3"); all if empty.
        tiers: only these, of a data set that must have them; if empty, those of the recipe.
        limit: the most images of each part of the data set.
        bad_files: whether unreadable files end the run or are left out.
    """
    data, out = data.resolve(), out.resolve()  # workers may be in another folder
    load_modules(recipe.modules)
    recipe.check_methods()
    for name in recipe.backbones:
        check_backbone(name)
    weights = find_weights(recipe, data)
    data_set = open_data_set(recipe.data, data)
    if tiers and all(shift.tier is None for shift in data_set.shifts):
        raise RecipeError(f"tiers: expected none, as {recipe.data} has no tiers, got {_listed(tiers)}")
    if tiers and recipe.order == "changing":
        raise RecipeError(f"tiers: expected none, as 'changing' has a `severity`, got {_listed(tiers)}")
    shifts = picked_shifts(data_set.shifts, targets, tiers or recipe.tiers)
    planned = joined_shifts(shifts, recipe.order, len({shift.target for shift in data_set.shifts}))
    with Store(out) as store:
        for folder in (out, out / MODELS, out / CACHE):
            folder.mkdir(exist_ok=True)
            for half in folder.glob(".*.partial"):  # of a killed run: this one alone has the store now
                half.unlink(missing_ok=True)
        few = min((each for each in (limit, recipe.domain_images) if each is not None), default=None)
        read = partial(_read_parts, data_set, out / CACHE, bad_files, workers.count, progress)
        stored = read([part for shift in shifts for part in shift.sources], limit)
        streams = read([part for stream in planned for part in stream.streams], few)
        runs = make_plan(recipe, data_set, shifts, stored, weights, limit, streams)
        total = {key: cell for run in runs for key, cell in run.cells.items()}
        before = store.done & total.keys()
        of_other_code = store.of_other_code(total.values())
        store.forget_failures(total)
        progress.cells(len(before), len(total))
        missing = [run for run in (run.without(before) for run in runs) if run.cells]
        failures = _Sweep(store, workers, recipe.modules, progress).work(missing)
    return SweepSummary(len(total), len(before), failures, of_other_code)


def find_weights(recipe: Recipe, data: Path) -> dict[str, InitialWeights]:
    """The initial weights of each network: DATA/weights/NAME.safetensors if it exists, else timm's hub."""
    found: dict[str, InitialWeights] = {}
    for name, backbone in recipe.backbones.items():
        if backbone.weights == "random" or name == SMALL_CNN:
            found[name] = None
            continue
        file = data / "weights" / f"{name}.safetensors"
        found[name] = file.resolve() if file.is_file() else "hub"
    return found


def picked_shifts(
    shifts: Sequence[Shift], targets: Sequence[str], tiers: Collection[int] = ()
) -> list[Shift]:
    """The shifts to these targets, each a domain or a domain and a tier; all if none is named.

    Of a data set with tiers, those of `tiers` alone, unless it is empty.
    """
    if tiers and any(s.tier is not None for s in shifts):
        there = sorted({s.tier for s in shifts if s.tier is not None})
        if missing := [tier for tier in tiers if tier not in there]:
            raise RecipeError(f"tiers: expected some of {_listed(there)}, got {_listed(missing)}")
        shifts = [s for s in shifts if s.tier in tiers]
    names = {s.target for s in shifts} | {f"{s.target}/{s.tier}" for s in shifts if s.tier is not None}
    for target in targets:
        if target not in names:
            known = dict.fromkeys(s.target for s in shifts)
            hint = " (and one tier of it as in NAME/3)" if any(s.tier for s in shifts) else ""
            raise RecipeError(f"no target {target!r}; there are {', '.join(known)}{hint}")
    return [s for s in shifts if not targets or s.target in targets or f"{s.target}/{s.tier}" in targets]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _read_parts(
    data_set: DataSet,
    folder: Path,
    bad_files: Literal["refuse", "skip"],
    workers: int,
    progress: RunProgress,
    parts: Iterable[str],
    limit: int | None,
) -> dict[str, Stored]:
    """Every part, read once into a cache that all workers share."""
    cache, stored, refused = Cache(folder), {}, []
    for name in dict.fromkeys(parts):
        progress.stage(f"reading {data_set.name}: {name}", 1)
        reader = Reader(workers=workers, bad_files=bad_files, progress=progress.step)
        try:
            stored[name] = cache.store(data_set, name, limit, reader)
        except DataError as error:
            refused.append(f"{name}: {error}")
            continue
        if stored[name].problems:
            listed = "\n  ".join(stored[name].problems)
            progress.say(f"{name}: {len(stored[name].problems)} files left out:\n  {listed}")
    if refused:
        raise DataError("\n".join(refused))
    return stored


@dataclass(frozen=True)
class _Sweep:
    """A sweep at work: the folder of its results, its workers, and what each of its tasks needs."""

    store: Store
    workers: Workers
    modules: tuple[str, ...]
    progress: RunProgress

    @property
    def models(self) -> Path:
        return self.store.folder / MODELS

    def work(self, runs: Iterable[RunPlan]) -> int:
        """Train as many models as there are workers, rehearse, do their runs, go on with the next models.

        Returns the number of failed cells.
        """
        by_model: dict[ModelPlan, list[RunPlan]] = {}
        for run in runs:
            by_model.setdefault(run.model, []).append(run)
        failures, models, size = 0, list(by_model), self.workers.count
        for group in (models[at : at + size] for at in range(0, len(models), size)):
            named = "; ".join(model.name for model in group) if len(group) <= 2 else f"{len(group)} models"
            untrained = self._train(group, named)
            for model, error in untrained.items():
                for run in by_model[model]:
                    failures += self._keep(None, failed(run, error))
            trained = [run for model in group if model not in untrained for run in by_model[model]]
            self._rehearse(trained, named)
            tasks = _with_summaries(trained, self.store.streams)
            task = partial(_with_modules, self.modules, partial(_adapt, self.models))
            for (run, _), result in self._each(f"adapting {named}", task, tasks):
                stored = (None, failed(run, result)) if isinstance(result, Exception) else result
                failures += self._keep(*stored)
        return failures

    def _each(
        self, stage: str, function: Callable[[_Task], _Result], tasks: Sequence[_Task]
    ) -> Iterator[tuple[_Task, _Result | Exception]]:
        """Each task with its result, as workers finish them."""
        self.progress.stage(stage, len(tasks))
        for done, finished in enumerate(self.workers.run(function, tasks), 1):
            self.progress.step(done, len(tasks))
            yield finished

    def _train(self, models: Sequence[ModelPlan], named: str) -> Mapping[ModelPlan, Exception]:
        """Train the models that have no file yet; returns the errors of those that failed."""
        wrong: dict[ModelPlan, Exception] = {}
        for model, result in self._each(
            f"training {named}", partial(train_source_model, folder=self.models), models
        ):
            if isinstance(result, Exception):
                wrong[model] = result
            elif result:
                self.progress.say(result)
        return wrong

    def _rehearse(self, runs: Iterable[RunPlan], named: str) -> None:
        """Make each rehearsal that these runs ask for once, before several runs would make the same.

        A rehearsal that fails here fails again in its runs, which then have the error in their results.
        """
        asking: dict[Path, RunPlan] = {}
        for run in (each.rehearsed() for each in runs):
            if run.cells:
                asking.setdefault(rehearsal_path(self.models, run.any_cell), run)
        if asking:
            task = partial(_with_modules, self.modules, partial(store_rehearsal, models=self.models))
            for _, remark in self._each(f"rehearsing {named}", task, list(asking.values())):
                if remark and not isinstance(remark, Exception):
                    self.progress.say(remark)

    def _keep(self, stream: StreamSummary | None, results: Sequence[CellResult]) -> int:
        """Store the results of a run, print the first failure, and count the failures."""
        self.store.add(stream, results)
        self.progress.made(len(results))
        wrong = [result for result in results if result["status"] == "failed"]
        if wrong:
            cell = wrong[0]["cell"]
            place = (cell["backbone"], cell["target"], cell["tier"], cell["label"])
            path = "/".join(str(each) for each in place if each is not None)
            self.progress.say(f"failed: {path}, seed {cell['seed']}: {wrong[0]['error']}")
        return len(wrong)


def _with_modules(modules: tuple[str, ...], function: Callable[[_Task], _Result], task: _Task) -> _Result:
    """Call the function in a worker, which may not have loaded the modules of the recipe."""
    load_modules(modules)
    with no_memory_kept():
        return function(task)


def _adapt(models: Path, task: tuple[RunPlan, bool]) -> tuple[StreamSummary | None, list[CellResult]]:
    run, summarise = task
    return run_cells(run, models, summarise=summarise)


def _with_summaries(runs: Iterable[RunPlan], known: Iterable[str]) -> list[tuple[RunPlan, bool]]:
    """Each run, and whether it is the first one of a stream without a summary."""
    seen, tasks = set(known), []
    for run in runs:
        first = not run.own_range and run.stream_key not in seen
        tasks.append((run, first))
        seen.update([run.stream_key] * first)
    return tasks
