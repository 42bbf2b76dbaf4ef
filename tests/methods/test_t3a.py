"""T3A against a plain list of supports, written out here, on a model written out here."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import same, snapshot, step_of

LIMITS = [None, 1, 2, 1000]


def small_model(seed: int = 0, *, bias: bool = True) -> nn.Sequential:
    """Linear, tanh, linear; the class of a row of the head is not always its own."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 7, bias=bias)).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model.eval()


def stream(batches: int, rows: int = 5, seed: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, 6, generator=generator, dtype=torch.float64) + 0.5 for _ in range(batches)]


class ByHand:
    """The supports of `small_model` as a list of unit vectors with their classes and entropies."""

    def __init__(self, model: nn.Sequential, limit: int | None) -> None:
        self.w: dict[str, Tensor] = dict(model.state_dict())
        self.bias = self.w.get("2.bias", torch.zeros(7).double())
        self.limit = limit
        self.supports: list[tuple[Tensor, int, float]] = []
        for row in self.w["2.weight"]:
            self.join(row)
        self.evicted = 0

    def features(self, x: Tensor) -> Tensor:
        return (x @ self.w["0.weight"].T + self.w["0.bias"]).tanh()

    def join(self, feature: Tensor) -> None:
        z = self.w["2.weight"] @ feature + self.bias
        p = z.exp() / z.exp().sum()
        entropy = -float((p * p.log()).sum())
        self.supports.append((feature / (feature**2).sum().sqrt(), int(z.argmax()), entropy))

    def of(self, label: int) -> list[tuple[Tensor, int, float]]:
        return [support for support in self.supports if support[1] == label]

    def keep_the_surest(self) -> None:
        before = len(self.supports)
        self.supports = [
            support
            for label in range(7)
            for support in sorted(self.of(label), key=lambda support: support[2])[: self.limit]
        ]
        self.evicted += before - len(self.supports)

    def scores(self, x: Tensor) -> Tensor:
        prototypes = []
        for label in range(7):
            total = sum((unit for unit, _, _ in self.of(label)), torch.zeros(4).double())
            length = math.sqrt(float((total**2).sum()))
            prototypes.append(total / length if length else total)
        return self.features(x) @ torch.stack(prototypes).T

    def step(self, x: Tensor) -> Tensor:
        for feature in self.features(x):
            self.join(feature)
        self.keep_the_surest()
        return self.scores(x)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_stream_is_exact(limit: int | None, bias: bool, seed: int) -> None:
    model = small_model(seed, bias=bias)
    adapter, expected = eq.create("t3a", model, supports=limit), ByHand(model, limit)
    probe = stream(1, seed=8)[0]
    expected.keep_the_surest()
    assert torch.allclose(adapter.predict(probe), expected.scores(probe), rtol=1e-9, atol=1e-12)
    for rows, x in enumerate(stream(6, rows=9), start=4):
        assert torch.allclose(adapter(x[:rows]), expected.step(x[:rows]), rtol=1e-9, atol=1e-12)
        assert torch.allclose(adapter.predict(probe), expected.scores(probe), rtol=1e-9, atol=1e-12)
        assert torch.allclose(adapter.detach()(probe), adapter.predict(probe), rtol=1e-9, atol=1e-12)
        step = step_of(adapter)
        assert (step.used, step.updated, step.reason) == (rows, True, "")
    assert (expected.evicted > 0) == (limit in (1, 2))


def test_the_rows_of_the_head_are_labelled_by_their_logits() -> None:
    model = small_model()
    labels = [label for _, label, _ in ByHand(model, None).supports]
    assert labels != list(range(7))
    without = sorted(set(range(7)) - set(labels))
    assert without
    logits = eq.create("t3a", model).predict(stream(1)[0])
    assert bool((logits[:, without] == 0).all())  # exactly
    assert bool((logits[:, labels] != 0).all())


def test_the_rows_of_the_head_compete_with_the_samples() -> None:
    model = small_model()
    expected = ByHand(model, 1)
    rows = [unit for unit, _, _ in expected.supports]
    adapter = eq.create("t3a", model, supports=1)
    for x in stream(6):
        assert torch.allclose(adapter(x), expected.step(x), rtol=1e-9, atol=1e-12)
    stayed = [any(torch.equal(unit, row) for row in rows) for unit, _, _ in expected.supports]
    assert 0 < sum(stayed) < len(stayed)


def separate_model(*bias: float) -> nn.Linear:
    """Three classes along three axes."""
    model = nn.Linear(3, 3).double()
    with torch.no_grad():
        model.weight.copy_(2 * torch.eye(3))
        model.bias.copy_(torch.tensor(bias))
    return model


def test_a_batch_joins_before_it_is_scored() -> None:
    adapter = eq.create("t3a", separate_model(0.0, 0.0, 0.0))
    x = torch.tensor([[4.0, 3.0, 0.0]]).double()
    v = torch.tensor([1.0, 0.0, 0.0]) + torch.tensor([0.8, 0.6, 0.0])
    assert adapter(x)[0].tolist() == pytest.approx([float(x[0].float() @ v / v.norm()), 3.0, 0.0])


def test_features_keep_their_length_and_the_bias_has_no_part_in_the_score() -> None:
    adapter = eq.create("t3a", separate_model(0.3, 0.0, -0.2))
    x = torch.tensor([[0.1, 0.0, 0.0], [0.0, 7.0, 0.0]]).double()
    assert torch.allclose(adapter(x), x)


def test_an_eviction_is_for_good() -> None:
    adapter = eq.create("t3a", separate_model(0.0, 0.0, 0.0), supports=1)
    axis, sure, unsure = torch.eye(3).double()[:1], [[5.0, 1.0, 0.0]], [[1.0, 0.9, 0.0]]
    assert adapter.predict(axis)[0].tolist() == [1.0, 0.0, 0.0]
    adapter(torch.tensor(sure).double())  # takes the place of the row of the head
    surest = adapter.predict(axis)
    assert surest[0, 0] == pytest.approx(5 / math.sqrt(26))
    for _ in range(3):
        adapter(torch.tensor(unsure).double())
        assert torch.equal(adapter.predict(axis), surest)


@pytest.mark.parametrize("limit", [None, 1000])
def test_a_class_whose_only_support_is_its_row_keeps_it(limit: int | None) -> None:
    # The authors' code for "all" drops the support of highest entropy of every class at every batch.
    adapter = eq.create("t3a", separate_model(0.0, 0.0, 0.0), supports=limit)
    x = torch.tensor([[3.0, 2.0, 1.0]]).double()
    for _ in range(50):
        assert adapter(x)[0, 1:].tolist() == [2.0, 1.0]


@pytest.mark.parametrize("limit", LIMITS)
def test_memory_is_constant_and_the_network_stays_the_source(limit: int | None) -> None:
    model = small_model()
    adapter = eq.create("t3a", model, supports=limit)
    sizes = []
    for x in stream(50):
        adapter(x)
        sizes.append(sum(t.numel() * t.element_size() for t in adapter.state_dict().values()))
    assert sizes[0] == sizes[-1]
    assert all(torch.equal(t, adapter.student.state_dict()[n]) for n, t in model.state_dict().items())


@pytest.mark.parametrize("limit", LIMITS)
def test_samples_with_non_finite_logits_never_become_supports(limit: int | None) -> None:
    adapter, clean = (eq.create("t3a", separate_model(0.0, 0.0, 0.0), supports=limit) for _ in range(2))
    x = torch.tensor([[3.0, 2.0, 1.0], [1.5e308, 0.0, 0.0], [0.0, 2.0, 1.0]], dtype=torch.float64)
    good = [0, 2]
    assert torch.equal(adapter(x)[good], clean(x[good]))
    assert same(snapshot(adapter), snapshot(clean))
    assert step_of(adapter).used == 2
    adapter(x[1:2])
    assert same(snapshot(adapter), snapshot(clean))
    step = step_of(adapter)
    assert (step.used, step.updated, step.reason) == (0, False, "non-finite logits")


@pytest.mark.parametrize(("saved", "loading"), [(None, 2), (2, None), (2, 3), (3, 1)])
def test_a_state_with_another_number_of_supports_is_refused(saved: int | None, loading: int | None) -> None:
    model = small_model()
    giver, taker = eq.create("t3a", model, supports=saved), eq.create("t3a", model, supports=loading)
    for adapter in (giver, taker):
        adapter(stream(1)[0])
    before = snapshot(taker)
    with pytest.raises(eq.errors.StateError, match=f"supports={loading}"):
        taker.load_state_dict(giver.state_dict())
    assert same(before, snapshot(taker))


def test_a_state_of_another_head_is_refused() -> None:
    giver = eq.create("t3a", separate_model(0.0, 0.0, 0.0))
    giver(torch.eye(3).double())
    taker = eq.create("t3a", small_model())
    taker(stream(1)[0])
    with pytest.raises(eq.errors.StateError):
        taker.load_state_dict(giver.state_dict())


def test_a_state_of_another_head_is_refused_though_the_head_is_not_known_yet() -> None:
    wide, narrow = (eq.create("t3a", nn.Linear(width, 3)) for width in (6, 4))
    wide(torch.randn(2, 6, generator=torch.Generator().manual_seed(0)))
    narrow.load_state_dict(wide.state_dict())
    with pytest.raises(eq.errors.StateError, match="another head"):
        narrow(torch.zeros(2, 4))


class Doubled(nn.Module):
    """Goes on after its head."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(x) * 2
        return logits


def test_a_loaded_adapter_of_a_model_that_goes_on_after_its_head_is_not_detached(tmp_path: Path) -> None:
    model = Doubled()
    adapter = eq.create("t3a", model, head="fc")
    with pytest.raises(eq.errors.StateError, match="answer a batch before detach"):
        adapter.detach()
    adapter(torch.ones(2, 4))
    adapter.save(tmp_path / "state.safetensors")
    with pytest.raises(eq.errors.ModelError, match="goes on after its head"):
        eq.load(tmp_path / "state.safetensors", model).detach()
