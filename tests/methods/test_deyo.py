"""DeYO against formulas written out here, and each trap of the authors' code."""

import math

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support import byhand as by
from tests.support.models import Counting, drifted, make, same, snapshot, step_of


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


class Shuffling(by.Learner):
    """A step on the samples that are reliable and depend on their shape."""

    def __init__(self, model: nn.Sequential, optimizer: str, rate: float, seed: int = 0) -> None:
        super().__init__(model, optimizer, rate)
        self.random = torch.Generator().manual_seed(seed)  # the numbers of torch's generator on the CPU

    def loss(self, z: Tensor, x: Tensor) -> tuple[Tensor, int]:
        h, p, scale = by.entropy(z), by.softmax(z).detach(), math.log(by.CLASSES)
        views = shuffled(x, torch.rand(len(x), 16, generator=self.random))
        others = by.softmax(self.forward(views, momentum=0.0).detach())
        plpd = torch.stack([p[i].max() - others[i, p[i].argmax()] for i in range(len(x))])
        kept = (h.detach() < 0.8 * scale) & (plpd > 0.1)
        factor = 1 / (h.detach() - 0.4 * scale).exp() + plpd.exp()
        return (factor * h)[kept].sum() / kept.sum(), int(kept.sum())


def test_batch_norm_sees_all_samples_in_both_forwards() -> None:
    model = make()[0]
    half = float(by.entropy(eq.create("norm", model)(drifted(8))).median())  # of the samples are reliable
    adapter, rows = eq.create("deyo", model, margin=half / math.log(5)), []
    adapter.student.register_forward_hook(lambda _module, inputs, _output: rows.append(len(inputs[0])))
    adapter(drifted(8))
    assert rows == [8, 8]


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
    assert step_of(adapter).updated == learns


def test_an_empty_filter_takes_no_step_and_no_second_forward() -> None:
    model = Counting(make("layer_norm")[0])
    adapter = eq.create("deyo", model, margin=1.0, min_drop=-1.0, learning_rate=0.05)
    adapter(drifted(8))
    assert step_of(adapter).updated
    none = eq.create("deyo", model, margin=0.0)
    before, Counting.forwards = snapshot(none), 0
    none(drifted(8))
    assert Counting.forwards == 1
    after = snapshot(none)
    assert after.pop("deyo.random").numel()  # drawn for every batch
    assert same(before, after)
    assert step_of(none).reason == "none of 8 samples is reliable and depends on its shape"


def test_no_drop_is_large_enough() -> None:
    adapter = eq.create("deyo", make("layer_norm")[0], margin=2.0, min_drop=1.0)
    before = snapshot(adapter)
    adapter(drifted(8))
    after = snapshot(adapter)
    after.pop("deyo.random")
    assert same(before, after)


def test_images_whose_sides_are_no_multiples_of_four_are_shuffled_all_the_same() -> None:
    adapter = eq.create("deyo", make()[0], margin=2.0, min_drop=-1.0)  # images of 6 x 6
    adapter(drifted(8))
    assert step_of(adapter).used == 8
