"""The code of the documentation runs as it stands, and prints what the pages say."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

import equipoise as eq
from equipoise.research.data import open_data_set
from equipoise.research.experiment.recipe import Recipe, load_recipe
from equipoise.testing import suite
from tests.docs.pages import DOCS, alike, check_page, examples
from tests.support.models import MODELS
from tests.support.rehearsals import held_out, samples, trained

WITH_EXAMPLES = sorted(
    str(page.relative_to(DOCS))
    for page in [
        *DOCS.glob("how-to/*.md"),
        *DOCS.glob("concepts/*.md"),
        *DOCS.glob("reference/*.md"),
        DOCS / "index.md",
    ]
    if examples(page)
)


@cache
def rehearsed_source() -> eq.SourceStatistics:
    return eq.rehearse(trained(), held_out(), samples=100, shifts=8, progress=False)


def names() -> dict[str, Any]:
    """The names that pages take for granted."""
    labelled = [samples(8, seed) for seed in range(20, 26)]
    adapter = eq.Poise(trained(), rehearsed_source())
    return {
        "__name__": "page",
        "model": trained(),
        "source": rehearsed_source(),
        "held_out_loader": held_out(),
        "stream": [x for x, _ in labelled],
        "labelled_stream": labelled,
        "labelled": labelled,
        "adapter": adapter,
    }


@pytest.mark.filterwarnings(
    "ignore::UserWarning:lightning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_the_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_page(DOCS / page, names())


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert torch.get_num_threads() == 1
    check_page(DOCS / "tutorial.md", {"__name__": "page"})


def test_the_method_of_the_page_conforms(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("batch_norm", "layer_norm")  # two of five: all take seconds
    monkeypatch.setattr(suite, "SMALL_MODELS", {kind: MODELS[kind] for kind in kinds})
    exec(examples(DOCS / "how-to" / "own-method.md")[0].code, {"__name__": "page"})
    broken = [f for f in suite.check_method("self_training") if f.outcome in ("failed", "remark")]
    assert not broken


def test_the_experiment_of_the_page(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "own-experiment.md"
    written = [block.split("```")[0] for block in page.read_text().split("```yaml\n")[1:]]
    for name, text in zip(("factory.yaml", "bursts.yaml"), written, strict=True):
        (tmp_path / name).write_text(text)
    recipe = Recipe.model_validate(yaml.safe_load(written[0]))
    stream = load_recipe(str(tmp_path / "bursts.yaml"))
    assert (stream.data, stream.order, list(stream.methods)) == (
        "factory",
        "correlated",
        list(recipe.methods),
    )
    exec(examples(page)[1].code, {"__name__": "page"})
    for line in ("line-1", "line-2", "line-3"):
        for label in ("good", "bad"):
            folder = tmp_path / "factory" / line / label
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(folder / "0.png")
    data = open_data_set(recipe.data, tmp_path)
    assert data.classes == ("bad", "good")
    assert len(data.shifts) == 3


def test_outputs_are_compared_loosely() -> None:
    assert alike("ECE 0.31 of a", "ECE  0.33 of a\n")
    assert not alike("ECE 0.31 of a", "ECE 0.41 of a")
    assert not alike("ECE 0.31 of a", "ECE 0.31 of b")
