"""The images among the inputs of a batch: which of several, and errors where none or more can be meant."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.errors import BatchError
from equipoise.network.batch import Batch
from tests.support.models import batch_norm_model, same, snapshot

IMAGES, GREY, MASK = torch.rand(8, 3, 6, 6), torch.rand(8, 1, 6, 6), torch.ones(8, 6, 6)
BOTH = {"pixel_mask": GREY, "pixel_values": IMAGES}


def changed(*args: Tensor, **kwargs: Tensor) -> list[str]:
    """The names of the inputs that a view of a batch changes."""
    batch = Batch.of(args, kwargs)
    views = batch.change(lambda value: value + 1).named()
    return [name for name, value in batch.named().items() if not views[name].equal(value)]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (BOTH, "pixel_values"),
        ({"mask": MASK, "images": IMAGES}, "images"),
        ({"mask": MASK, "images": GREY}, "images"),
        ({"mask": GREY > 0.5, "images": GREY}, "images"),
        ({"mask": GREY.long(), "images": (255 * GREY).to(torch.uint8)}, "images"),
        ({"depth": torch.rand(8, 4, 6, 6), "images": GREY}, "images"),
        ({"prompt": torch.rand(1, 3, 6, 6), "images": IMAGES, "mask": MASK}, "images"),
        ({"tokens": torch.rand(8, 5), "mask": torch.ones(8, 7)}, "tokens"),
        ({"positions": torch.zeros(1, 5), "tokens": torch.rand(8, 5), "mask": torch.ones(8, 5)}, "tokens"),
    ],
)
def test_the_images_are_changed_and_nothing_else(inputs: dict[str, Tensor], expected: str) -> None:
    assert changed(**inputs) == [expected]
    assert changed(**dict(reversed(inputs.items()))) == [expected] or expected == "tokens"


def test_a_lone_tensor_is_changed_whatever_it_is() -> None:
    for value in (IMAGES, IMAGES.long(), torch.rand(8, 5), torch.rand(8, 5, 6, 6)):
        assert changed(value) == ["0"]
    assert changed(MASK, IMAGES) == ["1"]


def test_several_that_can_be_the_images_are_named() -> None:
    with pytest.raises(
        BatchError,
        match=r"one input of images.*got left \(8, 3, 6, 6\), right \(8, 3, 6, 6\); join these in one tensor",
    ):
        changed(grey=GREY, left=IMAGES, right=IMAGES)
    with pytest.raises(BatchError, match=r"got a \(8, 2, 6, 6\), b \(8, 4, 6, 6\)"):
        changed(a=torch.rand(8, 2, 6, 6), b=torch.rand(8, 4, 6, 6))


class Masked(nn.Module):
    """A classifier of images that takes a mask first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = batch_norm_model()

    def forward(self, pixel_mask: Tensor, pixel_values: Tensor) -> Tensor:
        mask = pixel_mask if pixel_mask.ndim == 4 else pixel_mask.unsqueeze(1)
        logits: Tensor = self.inner(pixel_values * mask)
        return logits


LIVELY: dict[str, dict[str, Any]] = {
    "cotta": {"views": 2, "confidence": 1.0, "decay": 0.5},
    "memo": {"views": 2, "learning_rate": 0.5},
    "rotta": {"every": 4, "capacity": 4, "decay": 0.5},
    "petta": {"every": 4, "capacity": 4, "decay": 0.5},
    "deyo": {"margin": 2.0, "min_drop": -1.0},
    "roid": {},
    "cmf": {},
    "rmt": {"decay": 0.5},
}


@pytest.mark.parametrize("method", LIVELY)
@pytest.mark.parametrize("mask", [torch.ones(8, 1, 6, 6), torch.ones(8, 6, 6)], ids=["4-d", "3-d"])
def test_a_mask_that_comes_first_is_left_as_it_is(method: str, mask: Tensor) -> None:
    """A mask of ones stays one of ones: the answers are those of the images alone."""
    masked = Masked().eval()
    loader = [{"pixel_mask": mask, "pixel_values": IMAGES}]
    source = eq.SourceStatistics.measure(masked, loader, features=True, progress=False)
    plain = eq.SourceStatistics.measure(masked.inner, [IMAGES], features=True, progress=False)
    options = {"learning_rate": 0.05, **LIVELY.get(method, {})}
    one, other = (eq.create(method, m, s, **options) for m, s in ((masked, source), (masked.inner, plain)))
    for seed in range(2):
        x = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
        assert torch.allclose(one(pixel_mask=mask, pixel_values=x), other(x), atol=1e-5)
    assert one.last is not None
    assert one.last.updated


class Stereo(nn.Module):
    """A classifier of pairs of images."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = batch_norm_model()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        logits: Tensor = self.inner(left - right)
        return logits


VIEWING = [*LIVELY, "rdumb"]
CALM: dict[str, dict[str, Any]] = {
    "cotta": {"confidence": 0.0},
    "deyo": {"margin": 0.0},
    "rdumb": {"base": "rotta"},
}


def rows(seed: int = 0) -> dict[str, Tensor]:
    return {"input": torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))}


def table() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


@pytest.mark.parametrize("method", VIEWING)
@pytest.mark.parametrize(
    ("model", "batch", "message"),
    [
        (table, rows(), r'expected images \(N, C, H, W\).*got inputs of shape \(5, 6\); .*"tent"'),
        (Stereo, {"left": IMAGES, "right": IMAGES / 2}, "expected one input of images .*got left .*, right "),
    ],
)
def test_a_first_batch_without_one_input_of_images_is_refused(
    method: str, model: type[nn.Module], batch: dict[str, Tensor], message: str
) -> None:
    """Refused before it is clear that any view is going to be needed; and the rows are the caller's own."""
    made = model().eval()
    source = eq.SourceStatistics.measure(made, [batch], features=True, progress=False)
    adapter = eq.create(method, made, source, **CALM.get(method, {}))
    before, bad = snapshot(adapter), {name: value.clone() for name, value in batch.items()}
    next(iter(bad.values()))[0] = torch.nan
    name = CALM.get(method, {}).get("base", method)
    with pytest.raises(BatchError, match=f"{name}: {message}"):
        adapter(**bad)
    with pytest.raises(BatchError, match=f"{name}: {message}"):
        adapter.adapt([bad], progress=False)
    assert same(before, snapshot(adapter))
    assert adapter.last is None
    assert len(adapter.predict(**batch)) == len(next(iter(batch.values())))
