"""RDumb: exactly the base between resets, and exactly its start after one, by samples and not by batches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.method import SAMPLES
from equipoise.methods.rdumb import Rdumb
from tests.support import byhand as by
from tests.support.models import drifted, make, same, snapshot


def without_name(adapter: eq.Adapter) -> dict[str, Tensor]:
    """The state without the method's name, the count of samples, and the temperature, which goes on."""
    state = {name.partition(".")[2]: tensor for name, tensor in adapter.state_dict().items()}
    return {n: t for n, t in state.items() if n != "counts.seen" and not n.startswith("temperature.")}


def test_a_stream_with_resets_is_exact() -> None:
    model = by.flat_model()
    adapter = eq.create("rdumb", model, base="tent", every=15, options={"learning_rate": 0.01})
    expected, descent, seen, resets = by.ByHand(model), by.Adam(0.01), 0, 0
    for x in by.stream(8):  # batches of 7: the fourth and the seventh follow 21 samples
        if seen >= 15:
            expected, descent, seen, resets = by.ByHand(model), by.Adam(0.01), 0, resets + 1
        seen += len(x)
        expected.watch()
        z = expected.forward(x)
        expected.descend(by.entropy(z).sum() / len(z), descent)
        assert by.close(adapter(x), z)
        by.assert_alike(adapter, expected)
    assert resets == 2


BASES: dict[str, dict[str, Any]] = {
    "eta": {"margin": 1.0, "epsilon": 2.0, "learning_rate": 0.05},
    "eata": {"margin": 1.0, "epsilon": 2.0, "fisher_alpha": 1.0},
    "sar": {"margin": 1.0, "learning_rate": 0.05},
    "deyo": {"margin": 1.0, "min_drop": -1.0, "learning_rate": 0.05},
    "poem": {"margin": 1.0, "learning_rate": 0.05},
    "norm": {},
    "t3a": {"supports": 2},
    "sotta": {"confidence": 0.0, "every": 4, "capacity": 4},
    "dec": {"learning_rate": 0.01},
    "poise": {},
    "source": {},
}


@pytest.mark.parametrize("base", BASES)
def test_between_resets_it_is_the_base_and_after_one_the_base_at_its_start(base: str) -> None:
    model, source = make()
    shared: dict[str, Any] = {"tempering": "none"}
    adapter = eq.create("rdumb", model, source, base=base, every=20, options=BASES[base], **shared)
    plain = eq.create(base, model, source, **BASES[base], **shared)
    for seed, rows in enumerate((8, 8, 8, 8, 1, 8)):
        if seed == 3:  # 24 samples have been seen
            random = plain.responder.state.random.state
            plain.reset()
            plain.responder.state.random.state = random  # draws go on
        x = drifted(rows, seed)
        assert torch.equal(adapter(x), plain(x))
        assert same(without_name(adapter), without_name(plain))
        one, other = adapter.last, plain.last
        assert one is not None and other is not None
        assert (one.used, one.reason, one.loss) == (other.used, other.reason, other.loss)
    assert torch.equal(adapter.predict(x), plain.predict(x))
    assert torch.equal(adapter.detach()(x), plain.detach()(x))


def resets(sizes: list[int], every: int) -> list[int]:
    """The samples that came before each reset."""
    model = by.flat_model()
    adapter = eq.create("rdumb", model, base="tent", every=every, options={"learning_rate": 0.01})
    found, seen = [], 0
    for rows in sizes:
        adapter(by.stream(1, rows=rows)[0])
        if int(adapter.state_dict()["rdumb.counts.seen"]) == rows and seen:
            found.append(seen)
        seen += rows
    return found


def test_the_period_counts_samples_and_not_batches() -> None:
    assert resets([8] * 12, 16) == [16, 32, 48, 64, 80]
    assert resets([4] * 24, 16) == [16, 32, 48, 64, 80]
    assert resets([16] * 6, 16) == [16, 32, 48, 64, 80]
    assert resets([5] * 8, 16) == [20]  # a batch is never cut


def test_methods_with_equal_options_have_one_hash() -> None:
    assert hash(Rdumb(base="tent")) == hash(Rdumb(base="tent")) != hash(Rdumb(base="eta"))


def test_its_seed_is_the_bases_where_that_has_one() -> None:
    model, _ = make()
    options: dict[str, Any] = {"margin": 1.0, "min_drop": -1.0, "learning_rate": 0.05}
    ours, base = (eq.create("rdumb", model, base="deyo", options=options, seed=seed) for seed in (7, 3))
    other = eq.create("deyo", model, **options, seed=7)
    answers = [[adapter(drifted(8, s)) for s in range(3)][-1] for adapter in (ours, base, other)]
    assert torch.equal(answers[0], answers[2])
    assert not torch.equal(answers[0], answers[1])
    assert Rdumb(base="deyo", seed=7).random_seed == 7
    assert Rdumb(base="deyo", options={"seed": 2}, seed=7).random_seed == 2
    assert Rdumb(base="tent", seed=7).random_seed == 0


def test_memory_that_arrived_is_gone_after_a_reset() -> None:
    options = {"margin": 1.0, "epsilon": 2.0}
    adapter = eq.create("rdumb", make()[0], every=8, options=options)
    adapter(drifted(1))
    assert f"{SAMPLES}0" in adapter.memory
    adapter(drifted(8))
    assert "average" in adapter.memory
    adapter(drifted(1, 2))  # after a reset
    assert "average" not in adapter.memory
    assert len(adapter.memory[f"{SAMPLES}0"]) == 1


def test_a_reset_is_undone_with_a_batch_that_fails() -> None:
    adapter = eq.create("rdumb", make()[0], base="tent", every=8, options={"learning_rate": 0.05})
    adapter(drifted(8))
    before = snapshot(adapter)
    handle = adapter.student.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("no")))
    with pytest.raises(RuntimeError, match="no"):
        adapter(drifted(8, 1))
    handle.remove()
    assert same(before, snapshot(adapter))
    adapter(1e30 * drifted(8, 1))  # undone by its checks
    assert same(before, snapshot(adapter))
    fresh = eq.create("rdumb", make()[0], base="tent", every=8, options={"learning_rate": 0.05})
    assert torch.equal(adapter(drifted(8, 2)), fresh(drifted(8, 2)))
    assert same(snapshot(adapter), snapshot(fresh))


def test_a_batch_of_nan_alone_resets_nothing() -> None:
    adapter = eq.create("rdumb", make()[0], base="tent", every=8, options={"learning_rate": 0.05})
    adapter(drifted(8))
    before = snapshot(adapter)
    adapter(torch.full((8, 3, 6, 6), torch.nan))
    assert same(before, snapshot(adapter))


def test_the_temperature_goes_on_over_a_reset() -> None:
    model, source = make()
    adapter, plain = (
        eq.create(name, model, source, tempering="mean", **options)
        for name, options in (("rdumb", {"base": "source", "every": 8}), ("source", {}))
    )
    for seed in range(4):
        assert torch.equal(adapter(drifted(8, seed)), plain(drifted(8, seed)))
    assert adapter.temperature == plain.temperature


def test_save_and_load_keep_the_count_and_the_options_of_the_base(tmp_path: Path) -> None:
    model, source = make()
    adapter = eq.create("rdumb", model, source, base="sotta", every=20, options=BASES["sotta"])
    for seed in range(2):
        adapter(drifted(8, seed))
    adapter.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", model)
    assert loaded.options == adapter.options
    for seed in range(2, 6):  # over a reset
        assert torch.equal(adapter(drifted(8, seed)), loaded(drifted(8, seed)))
    state = adapter.state_dict()
    state["rdumb.counts.seen"] = torch.tensor(-1)
    with pytest.raises(eq.errors.StateError, match=r"counts\.seen: expected a number >= 0, got -1"):
        adapter.load_state_dict(state)


def test_a_base_with_a_teacher_and_source_statistics_needs_them() -> None:
    model, source = make()
    with pytest.raises(eq.errors.SourceError, match="fisher=True"):
        eq.create("rdumb", model, base="eata")
    adapter = eq.create("rdumb", model, source, base="dec")
    assert adapter.options["source_copy"] == "resident"
    assert adapter.options["tempering"] == "mean"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"base": "rdumb"},
            eq.errors.OptionError,
            "expected base as the name of another method, got 'rdumb'",
        ),
        ({"base": "etta"}, eq.errors.UnknownMethodError, "no method 'etta'; there are "),
        ({"options": {"margn": 1}}, eq.errors.UnknownOptionError, "eta has no option margn; it has "),
        ({"options": {"margin": -1}}, eq.errors.OptionError, "expected margin >= 0, got -1"),
        (
            {"options": [1]},
            eq.errors.OptionError,
            r"expected options as a mapping of names to values, got \[1\]",
        ),
        ({"every": 0}, eq.errors.OptionError, "expected every >= 1, got 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        eq.create("rdumb", make()[0], **options)


def test_a_rehearsal_measures_what_the_base_needs() -> None:
    model, _ = make()
    held_out = [(drifted(20, seed), torch.arange(20) % 5) for seed in range(6)]
    given: dict[str, Any] = {"base": "eata", "every": 40, "options": {"learning_rate": 1e-3}}
    small: dict[str, Any] = {"shifts": 8, "batch_size": 20, "check_held_out": False, "progress": False}
    source = eq.rehearse(model, held_out, method="rdumb", **small, **given)
    adapter = eq.create("rdumb", model, source, tempering="rehearsed", **given)
    adapter(drifted(20))
    assert adapter.accuracy is not None
