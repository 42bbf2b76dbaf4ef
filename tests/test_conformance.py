"""The contract every registered method keeps, on models with batch, layer, group and no normalisation."""

import copy
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.toys import CLASSES, MODELS, WithLogits, drifted, make, measured, rehearsed, same, snapshot

# Every method as it comes, and with options under which much happens in a short stream.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in eq.list_methods()},
    "source, each tempered": ("source", {"tempering": "median"}),
    "norm, blended": ("norm", {"prior": 4.0, "tempering": "mean"}),
    "tent, lively": ("tent", {"optimizer": "sgd", "learning_rate": 0.05, "steps": 2, "window": 3}),
    "eta, lively": ("eta", {"margin": 1.0, "epsilon": 2.0, "learning_rate": 0.05, "tempering": "median"}),
    "eata, lively": ("eata", {"margin": 1.0, "epsilon": 0.99, "optimizer": "adam", "window": 2}),
    "t3a, lively": ("t3a", {"supports": 2, "tempering": "mean"}),
    "sotta, lively": ("sotta", {"confidence": 0.0, "every": 3, "capacity": 4, "tempering": "median"}),
    "sotta, all": ("sotta", {"confidence": 0.2, "every": 2, "parameters": "all", "steps": 2}),
    "poise, rehearsed": ("poise", {"tempering": "rehearsed"}),
    "tent, rehearsed": ("tent", {"tempering": "rehearsed"}),
    "dec, released": ("dec", {"reading": "released", "tempering": "median"}),
    "dec, lively": (
        "dec",
        {"optimizer": "adam", "learning_rate": 0.01, "steps": 2, "teacher": "swapped"},
    ),
}
ON_NORMS = ("tent", "eta", "eata", "sotta")


def impossible(case: str, kind: str) -> bool:
    """Whether the method cannot work on the model, by what it needs."""
    method, options = CASES[case]
    if method == "norm":
        return kind != "batch_norm"
    return method in ON_NORMS and kind == "norm_free" and "parameters" not in options


POSSIBLE = [(case, kind) for case in CASES for kind in MODELS if not impossible(case, kind)]
pytestmark = pytest.mark.parametrize(("case", "kind"), POSSIBLE)
BATCH_SIZES = (8, 1, 2, 1, 8, 1, 3)  # a stream with batches of one and a ragged end


def stream() -> list[Tensor]:
    return [drifted(rows, seed) for seed, rows in enumerate(BATCH_SIZES)]


def create(case: str, model: nn.Module, source: eq.SourceStatistics, **more: Any) -> eq.Adapter:
    method, options = CASES[case]
    if options.get("tempering") == "rehearsed":
        source = rehearsed(source, method)
    return eq.create(method, model, source, **{**options, **more})


def build(case: str, kind: str) -> tuple[eq.Adapter, nn.Module]:
    model, source = make(kind)
    return create(case, model, source), model


def test_finite_logits_of_the_right_shape(case: str, kind: str) -> None:
    adapter, model = build(case, kind)
    for x in stream():
        for logits in (adapter(x), adapter.predict(x)):
            assert logits.shape == (len(x), CLASSES)
            assert bool(logits.isfinite().all())
            assert logits.dtype == next(model.parameters()).dtype
            assert not logits.requires_grad


def test_double_precision_stays_double(case: str, kind: str) -> None:
    model, source = make(kind)
    adapter = create(case, model.double(), source)
    assert adapter(drifted(8).double()).dtype == torch.float64


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_learns_the_same_under_any_grad_mode(
    case: str, kind: str, context: Callable[[], AbstractContextManager[None]]
) -> None:
    plain, _ = build(case, kind)
    wrapped, _ = build(case, kind)
    expected = [plain(x) for x in stream()]
    with context():
        came = [wrapped(x.clone()) for x in stream()]
    assert all(torch.equal(a, b) for a, b in zip(expected, came, strict=True))
    assert same(snapshot(plain), snapshot(wrapped))


def test_can_be_made_reset_and_loaded_in_inference_mode(case: str, kind: str) -> None:
    model, source = make(kind)
    plain = create(case, model, source)
    plain(drifted(8))
    with torch.inference_mode():
        adapter = create(case, model, source)
        adapter(drifted(8))
        state = adapter.state_dict()
        adapter.reset()
        adapter.load_state_dict(state)
    assert torch.equal(adapter(drifted(4)), plain(drifted(4)))


def test_autocast(case: str, kind: str) -> None:
    adapter, _ = build(case, kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for x in stream():
            assert bool(adapter(x).isfinite().all())


def test_the_model_passed_in_is_unchanged(case: str, kind: str) -> None:
    model, source = make(kind)
    model.train()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = len(model._forward_hooks)
    adapter = create(case, model, source)
    for x in stream():
        adapter(x)
        adapter.predict(x)
    adapter.reset()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(not p.requires_grad and p.grad is None for p in model.parameters())
    assert len(model._forward_hooks) == hooks


def test_reset_is_bit_exact(case: str, kind: str) -> None:
    adapter, model = build(case, kind)
    fresh, untouched = snapshot(adapter), adapter.predict(drifted(4))
    first = [adapter(x) for x in stream()]
    adapter.reset()
    assert same(fresh, snapshot(adapter))
    for name, tensor in adapter.student.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert adapter.last is None
    assert torch.equal(adapter.predict(drifted(4)), untouched)
    assert all(torch.equal(a, b) for a, b in zip(first, [adapter(x) for x in stream()], strict=True))


def test_save_and_load_go_on_where_they_were(case: str, kind: str, tmp_path: Path) -> None:
    adapter, model = build(case, kind)
    for x in stream():
        adapter(x)
    adapter.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", model)
    assert type(loaded) is type(adapter)
    assert loaded.options == adapter.options
    assert loaded.source == adapter.source
    assert torch.equal(adapter.predict(drifted(4)), loaded.predict(drifted(4)))
    for x in stream():
        assert torch.equal(adapter(x), loaded(x))
    assert same(snapshot(adapter), snapshot(loaded))
    loaded.reset()
    adapter.reset()
    assert same(snapshot(adapter), snapshot(loaded))


def test_a_state_dict_is_a_copy_to_go_back_to(case: str, kind: str) -> None:
    adapter, _ = build(case, kind)
    adapter(drifted(8))
    state, before = adapter.state_dict(), snapshot(adapter)
    for x in stream():
        adapter(x)
    adapter.load_state_dict(state)
    assert same(before, snapshot(adapter))


def test_the_global_random_state_is_untouched(case: str, kind: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    adapter, _ = build(case, kind)
    for x in stream():
        adapter(x)
        adapter.predict(x)
    adapter.reset()
    assert torch.equal(before, torch.get_rng_state())


def test_undeclared_parameters_are_unchanged(case: str, kind: str) -> None:
    adapter, model = build(case, kind)
    for x in stream():
        adapter(x)
    for name, parameter in adapter.student.named_parameters():
        if name not in adapter.learned:
            assert torch.equal(parameter, model.get_parameter(name))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_non_finite_sample_is_as_if_it_had_not_been_there(case: str, kind: str, bad: float) -> None:
    adapter, _ = build(case, kind)
    clean, _ = build(case, kind)
    for x in stream():
        mixed = torch.cat([x[:1], torch.full_like(x[:1], bad), x[1:]])
        logits, expected = adapter(mixed), clean(x)
        assert bool(logits[1].isnan().all())
        assert torch.equal(torch.cat([logits[:1], logits[2:]]), expected)
        assert adapter.last is not None
        assert (adapter.last.samples, adapter.last.set_aside) == (len(x) + 1, 1)
        assert "non-finite" in adapter.last.reason
    assert same(snapshot(adapter), snapshot(clean))


def test_a_batch_of_bad_samples_changes_nothing(case: str, kind: str) -> None:
    adapter, _ = build(case, kind)
    adapter(drifted(8))
    before = snapshot(adapter)
    logits = adapter(torch.full((3, 3, 6, 6), torch.nan))
    assert logits.shape == (3, CLASSES)
    assert bool(logits.isnan().all())
    assert same(before, snapshot(adapter))
    assert adapter.last is not None
    assert not adapter.last.updated
    assert adapter.last.set_aside == 3


def test_no_labels_in_any_signature(case: str, kind: str) -> None:
    adapter, _ = build(case, kind)
    for function in (type(adapter).__init__, adapter.forward, adapter.predict, adapter.adapt, adapter.step):
        for name in inspect.signature(function).parameters:
            assert not any(word in name for word in ("label", "target", "truth")) and name != "y"


class Fussy(nn.Module):
    """Raises after its layers have run, in the call that it is told."""

    fails_in: int | None = None

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        if Fussy.fails_in is not None:
            Fussy.fails_in -= 1
            if Fussy.fails_in == 0:
                raise RuntimeError("the model's own words")
        return logits


def test_an_error_of_the_model_passes_through_and_nothing_changes(case: str, kind: str) -> None:
    inner, _ = make(kind)
    model = Fussy(inner)
    adapter = create(case, model, measured(model, [drifted(16)]))
    adapter(drifted(8))
    before, last = snapshot(adapter), adapter.last
    Fussy.fails_in = calls = 1
    while Fussy.fails_in is not None:
        Fussy.fails_in = calls
        try:
            adapter(drifted(8, seed=1))
        except RuntimeError as error:
            assert str(error) == "the model's own words"
            assert same(before, snapshot(adapter))
            assert adapter.last is last
            assert not any(module.training for module in adapter.student.modules())
            calls += 1
        else:
            Fussy.fails_in = None
    assert calls > 1


def test_adapt_is_a_pass_over_the_loader(case: str, kind: str) -> None:
    by_hand, _ = build(case, kind)
    adapter, _ = build(case, kind)
    for x in stream():
        by_hand(x)
    labels = torch.zeros(8)
    assert adapter.adapt([(x, labels) for x in stream()], progress=False) is adapter
    assert same(by_hand.state_dict(), adapter.state_dict())


def test_keyword_inputs_and_logits_objects(case: str, kind: str) -> None:
    _, model = build(case, kind)
    source = measured(WithLogits(model), [{"pixel_values": drifted(16)}])
    adapter = create(case, WithLogits(model), source)
    again = create(case, WithLogits(model), source)
    for x in stream():
        assert torch.equal(adapter(pixel_values=x), again(x, scale=1.0))
    assert adapter.predict(pixel_values=drifted(3)).shape == (3, CLASSES)
    adapter.adapt([{"pixel_values": drifted(4)}], progress=False)
    mixed = torch.cat([drifted(2), torch.full((1, 3, 6, 6), torch.nan)])
    assert adapter(pixel_values=mixed, scale=1.0).isnan().any(1).tolist() == [False, False, True]


def test_detached_module_answers_as_predict(case: str, kind: str) -> None:
    adapter, _ = build(case, kind)
    for x in stream():
        adapter(x)
    module = adapter.detach()
    expected = adapter.predict(drifted(6))
    assert torch.allclose(module(drifted(6)), expected, atol=1e-6)
    adapter(drifted(8))
    assert torch.allclose(module(drifted(6)), expected, atol=1e-6)  # a copy: free of the adapter
    exported = torch.export.export(module, (drifted(6),)).module()
    assert torch.allclose(exported(drifted(6)), expected, atol=1e-6)


def test_moves_and_copies_like_a_module(case: str, kind: str) -> None:
    adapter, _ = build(case, kind)
    adapter(drifted(8))
    twin = copy.deepcopy(adapter)
    assert torch.equal(twin(drifted(8, 1)), adapter(drifted(8, 1)))
    twin.reset()
    assert twin.train().eval() is twin
    twin.double()
    assert all(t.dtype != torch.float32 for n, t in twin.kept.items() if not n.startswith("samples."))
    assert twin(drifted(8).double()).dtype == torch.float64
    twin.reset()
    expected = make(kind)[0].double().state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in twin.student.state_dict().items())


def test_a_cast_in_mid_stream_is_survived(case: str, kind: str) -> None:
    adapter, _ = build(case, kind)
    adapter(drifted(8))
    for cast in (torch.bfloat16, torch.float64, torch.float32):
        adapter.to(cast)
        adapter.load_state_dict(adapter.state_dict())
        if CASES[case][0] != "sotta":  # its memory has samples of another type by now, and says so
            for x in stream():
                assert bool(adapter(x.to(cast)).isfinite().all())
