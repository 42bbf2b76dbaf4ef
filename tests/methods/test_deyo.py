"""DeYO against formulas written out here, and each trap of the authors' code."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.byhand import (
    CLASSES,
    Adam,
    ByHand,
    Descent,
    Momentum,
    assert_alike,
    close,
    conv_model,
    entropy,
    softmax,
    stream,
)
from tests.support.models import Counting, drifted, make, same, snapshot


def draws(batches: int, rows: int, seed: int = 0) -> list[Tensor]:
    """The random numbers of an adapter: those of torch's generator on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(rows, 16, generator=generator) for _ in range(batches)]


def shuffled(images: Tensor, numbers: Tensor) -> Tensor:
    """Each of the images with its sixteen patches in the order of its numbers."""
    made = torch.empty_like(images)
    height, width = images.shape[2] // 4, images.shape[3] // 4
    for row, order in enumerate(numbers.argsort(1).tolist()):
        for place, patch in enumerate(order):
            (top, left), (to_top, to_left) = divmod(patch, 4), divmod(place, 4)
            made[row, :, height * to_top : height * (to_top + 1), width * to_left : width * (to_left + 1)] = (
                images[row, :, height * top : height * (top + 1), width * left : width * (left + 1)]
            )
    return made


def learn(
    expected: ByHand, x: Tensor, numbers: Tensor, margin: float, drop: float, descent: Descent
) -> tuple[Tensor, Tensor, float]:
    """A step on the samples kept: logits, which were kept, and the loss."""
    expected.watch()
    z = expected.forward(x)
    h, p = entropy(z), softmax(z).detach()
    others = softmax(expected.forward(shuffled(x, numbers), momentum=0.0).detach())
    plpd = torch.stack([p[i].max() - others[i, p[i].argmax()] for i in range(len(x))])
    kept = (h.detach() < margin * math.log(CLASSES)) & (plpd > drop)
    if not kept.any():
        return z.detach(), kept, math.nan
    factor = 1 / (h.detach() - 0.4 * math.log(CLASSES)).exp() + plpd.exp()
    loss = (factor * h)[kept].sum() / kept.sum()
    expected.descend(loss, descent)
    return z.detach(), kept, float(loss.detach())


@pytest.mark.parametrize(
    ("options", "descent"),
    [
        ({}, lambda: Momentum(2.5e-4)),
        ({"learning_rate": 0.02, "seed": 5}, lambda: Momentum(0.02)),
        ({"optimizer": "adam"}, lambda: Adam(1e-3)),
    ],
)
def test_batches_are_exact(options: dict[str, Any], descent: Any) -> None:
    model = conv_model()
    adapter = eq.create("deyo", model, margin=0.8, min_drop=0.1, **options)
    expected, optimiser, kept = ByHand(model), descent(), []
    numbers = draws(4, 9, options.get("seed", 0))
    for x, drawn in zip(stream(4, rows=9, like=model), numbers, strict=True):
        z, chosen, loss = learn(expected, x, drawn, 0.8, 0.1, optimiser)
        assert close(adapter(x), z)
        assert adapter.last is not None
        assert adapter.last.used == int(chosen.sum())
        if chosen.any():
            assert adapter.last.loss == pytest.approx(loss)
        kept.append(int(chosen.sum()))
    assert 0 < sum(kept) < 36
    assert_alike(adapter, expected)


def test_the_defaults_are_the_authors() -> None:
    options = eq.create("deyo", conv_model()).options
    names = ("optimizer", "learning_rate", "momentum", "margin", "min_drop")
    assert tuple(options[name] for name in names) == ("sgd", 2.5e-4, 0.9, 0.5, 0.2)


def test_batch_norm_sees_all_samples_in_both_forwards() -> None:
    model = make()[0]
    half = float(entropy(eq.create("norm", model)(drifted(8))).median())  # of the samples are reliable
    adapter, rows = eq.create("deyo", model, margin=half / math.log(5)), []
    adapter.student.register_forward_hook(lambda _module, inputs, _output: rows.append(len(inputs[0])))
    adapter(drifted(8))
    assert rows == [8, 8]


def test_shuffled_images_do_not_move_the_running_statistics() -> None:
    model = make()[0]
    adapter, twin = eq.create("deyo", model, margin=2.0), eq.create("tent", model)
    adapter(drifted(8))
    twin(drifted(8))
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(adapter.student.get_buffer(name), twin.student.get_buffer(name))


class Centred(nn.Module):
    """Answers by the brightness of one corner of an image, or of the whole."""

    def __init__(self, corner: bool) -> None:
        super().__init__()
        self.corner, self.norm = corner, nn.LayerNorm(2)

    def forward(self, x: Tensor) -> Tensor:
        part = x[:, :1, :1, :1] if self.corner else x
        brightness = part.mean((1, 2, 3))
        logits: Tensor = self.norm(torch.stack([brightness, -brightness], 1)) * 4
        return logits


@pytest.mark.parametrize(("corner", "learns"), [(True, True), (False, False)])
def test_only_answers_that_depend_on_the_shape_are_learned_from(corner: bool, learns: bool) -> None:
    images = torch.full((40, 3, 8, 8), -1.0)
    images[:, :, :2, :2] = 40.0  # one bright patch of sixteen
    adapter = eq.create("deyo", Centred(corner), learning_rate=0.1)
    adapter(images)
    assert adapter.last is not None
    assert adapter.last.updated == learns


def test_an_empty_filter_takes_no_step_and_no_second_forward() -> None:
    model = Counting(make("layer_norm")[0])
    adapter = eq.create("deyo", model, margin=1.0, min_drop=-1.0, learning_rate=0.05)
    adapter(drifted(8))
    assert adapter.last is not None
    assert adapter.last.updated
    none = eq.create("deyo", model, margin=0.0)
    before, Counting.forwards = snapshot(none), 0
    none(drifted(8))
    assert Counting.forwards == 1
    after = snapshot(none)
    assert after.pop("deyo.random").numel()  # drawn for every batch
    assert same(before, after)
    assert none.last is not None
    assert none.last.reason == "none of 8 samples is reliable and depends on its shape"


def test_no_drop_is_large_enough() -> None:
    adapter = eq.create("deyo", make("layer_norm")[0], margin=2.0, min_drop=1.0)
    before = snapshot(adapter)
    adapter(drifted(8))
    after = snapshot(adapter)
    after.pop("deyo.random")
    assert same(before, after)


def test_the_seed_decides_the_order_of_patches_and_a_reset_brings_it_back() -> None:
    def run(adapter: eq.Adapter) -> Tensor:
        return torch.cat([adapter(drifted(8, seed)) for seed in range(4)])

    options: dict[str, Any] = {"margin": 1.0, "min_drop": 0.0, "learning_rate": 0.5}
    first, again, other = (eq.create("deyo", make()[0], seed=seed, **options) for seed in (1, 1, 2))
    answers = run(first)
    assert torch.equal(answers, run(again))
    assert not torch.equal(answers, run(other))
    first.reset()
    assert torch.equal(answers, run(first))


def test_images_whose_sides_are_no_multiples_of_four_are_shuffled_all_the_same() -> None:
    adapter = eq.create("deyo", make()[0], margin=2.0, min_drop=-1.0)  # images of 6 x 6
    adapter(drifted(8))
    assert adapter.last is not None
    assert adapter.last.used == 8


@pytest.mark.parametrize("margin", [0.0, 2.0])
def test_inputs_that_are_no_images_are_refused(margin: float) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    adapter = eq.create("deyo", model, margin=margin)
    before = snapshot(adapter)
    with pytest.raises(eq.errors.BatchError, match=r"expected images \(N, C, H, W\).*got .*\(5, 6\)"):
        adapter(torch.randn(5, 6))
    assert same(before, snapshot(adapter))


def test_one_sample_and_a_row_of_nan() -> None:
    model = make()[0]
    lone = eq.create("deyo", model, margin=2.0, min_drop=-1.0, window=2)
    used = []
    for seed in range(4):
        lone(drifted(1, seed))
        assert lone.last is not None
        used.append(lone.last.used)
    assert used == [0, 2, 0, 2]
    options: dict[str, Any] = {"margin": 2.0, "min_drop": -1.0, "learning_rate": 0.05}
    adapter, clean = (eq.create("deyo", model, **options) for _ in range(2))
    x = drifted(5)
    answer = adapter(torch.cat([x[:2], torch.full_like(x[:1], torch.nan), x[2:]]))
    assert torch.equal(answer[[0, 1, 3, 4, 5]], clean(x))
    assert same(snapshot(adapter), snapshot(clean))
