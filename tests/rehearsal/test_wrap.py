"""One call that rehearses a model and returns its adapter."""

from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.errors import OptionError, UnknownMethodError, UnknownOptionError
from tests.support.rehearsals import alike, held_out, samples, trained

SMALL: dict[str, Any] = {"shifts": 8, "progress": False, "seed": 3}


@pytest.mark.parametrize("method", ["poise", "tent", "dec"])
def test_it_is_a_rehearsal_and_its_adapter(method: str, tmp_path: Path) -> None:
    model, own = trained(), dict[str, Any]() if method == "poise" else {"learning_rate": 1e-3}
    adapter = eq.wrap(model, held_out(), method=method, engine="eager", t_max=4.0, **SMALL, **own)
    ranged: dict[str, Any] = {"t_max": 4.0} if method == "dec" else {}
    source = eq.rehearse(model, held_out(), method=method, **SMALL, **ranged, **own)
    given: dict[str, Any] = {"tempering": "rehearsed", "engine": "eager", "t_max": 4.0, **own}
    like = eq.create(method, model, source, **given)
    assert adapter.source is not None
    assert alike(adapter.source, source)
    assert adapter.options == like.options
    for seed in range(2):
        assert torch.equal(adapter(samples(50, seed)[0]), like(samples(50, seed)[0]))
    assert adapter.accuracy is not None
    adapter.source.save(tmp_path / "kept.safetensors")
    kept = eq.create(method, model, tmp_path / "kept.safetensors", **given)
    kept.load_state_dict(adapter.state_dict())
    assert torch.equal(kept(samples(50)[0]), adapter(samples(50)[0]))


def test_by_default_it_is_poise_on_a_pair() -> None:
    adapter = eq.wrap(trained(), samples(200, seed=1), **SMALL)
    assert type(adapter) is eq.Poise
    assert adapter.temper.kind == "rehearsed"


def test_inputs_and_outputs_go_to_both() -> None:
    functions: dict[str, Any] = {"inputs": lambda batch: batch["image"], "outputs": lambda out: 2 * out}
    loader = [{"image": x, "labels": y} for x, y in held_out()]
    adapter = eq.wrap(trained(), loader, **SMALL, **functions)
    assert torch.equal(adapter.source_logits({"image": samples(8)[0]}), 2 * trained()(samples(8)[0]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "poisson"}, UnknownMethodError, "no method 'poisson'"),
        ({"shift": 8}, UnknownOptionError, "poise has no option shift"),
        ({"tempering": "none"}, OptionError, "tempering is not an option of a rehearsal"),
        ({"engine": "fast"}, OptionError, "expected engine as one of"),
        ({"samples": 3}, OptionError, "samples"),
        ({"t_min": 4.0, "t_max": 2.0}, OptionError, "t_min <= t_max"),
        ({"t_min": 4.0, "t_max": 2.0, "method": "dec"}, OptionError, "t_min <= t_max"),
        ({"t_max": 1000.0}, OptionError, "t_min <= t_max"),
        ({"t_max": "high"}, OptionError, "t_max"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    def unread() -> Any:
        raise AssertionError("labelled data were read")
        yield

    with pytest.raises(error, match=message):
        eq.wrap(trained(), unread(), progress=False, **options)
