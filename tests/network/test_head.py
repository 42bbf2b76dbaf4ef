"""The linear head is found in the forward itself, on models as their libraries build them."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn

import equipoise as eq
from equipoise.network.forward import logits_of
from tests.support.models import WithLogits, batch_norm_model, drifted, make, same, snapshot

CLASSES = 5
HF: Any = transformers  # its annotations lack options that it has
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Inputs(NamedTuple):
    """What one call of a model takes."""

    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]

    def to(self, function: Callable[..., Any]) -> Tensor:
        return logits_of(function(*self.args, **self.kwargs))


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def photos(seed: int) -> Inputs:
    return Inputs((random(3, 3, 64, 64, seed=seed),), {})


def pixels(seed: int) -> Inputs:
    return Inputs((), {"pixel_values": random(3, 3, 16, 16, seed=seed)})


def words(seed: int) -> Inputs:
    ids = torch.randint(1, 30, (3, 7), generator=torch.Generator().manual_seed(seed))
    return Inputs((), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def vectors(seed: int) -> Inputs:
    return Inputs((random(3, 6, seed=seed),), {})


def tiny_vit() -> Any:
    config = HF.ViTConfig(image_size=16, patch_size=8, num_labels=CLASSES, **TINY)
    return HF.ViTForImageClassification(config)


def tiny_bert() -> Any:
    config = HF.BertConfig(vocab_size=30, num_labels=CLASSES, **TINY)
    return HF.BertForSequenceClassification(config)


class Aliased(nn.Module):
    """Its head has three names."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.head, self.heads = self.net[2], nn.ModuleDict({"first": self.net[2]})

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.heads["first"](self.net[1](self.net[0](x)))
        return logits


class Halved(nn.Module):
    """Divides its logits by 2: what it returns is not what its head gave."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(6, 8), nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).tanh())
        return logits / 2


class HalvedInPlace(Halved):
    """The same, written over what the head gave."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).tanh())
        return logits.div_(2)


class ByKeyword(Halved):
    """Calls its head with a keyword."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(input=self.body(x).tanh())
        return logits


class Case(NamedTuple):
    build: Callable[[], Any]
    inputs: Callable[[int], Inputs]
    head: str


def vision(name: str) -> Any:
    return getattr(torchvision.models, name)(num_classes=CLASSES)


FOUND: dict[str, Case] = {
    "torchvision resnet18": Case(lambda: vision("resnet18"), photos, "fc"),
    "torchvision mobilenet_v3_small": Case(lambda: vision("mobilenet_v3_small"), photos, "classifier.3"),
    "torchvision efficientnet_b0": Case(lambda: vision("efficientnet_b0"), photos, "classifier.1"),
    "timm vit_tiny": Case(
        lambda: timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, img_size=64), photos, "head"
    ),
    "timm mobilenetv1_100": Case(
        lambda: timm.create_model("mobilenetv1_100", num_classes=CLASSES), photos, "classifier"
    ),
    "timm convnext_atto": Case(
        lambda: timm.create_model("convnext_atto", num_classes=CLASSES), photos, "head.fc"
    ),
    "Hugging Face ViT": Case(tiny_vit, pixels, "classifier"),
    "Hugging Face BERT": Case(tiny_bert, words, "classifier"),
    "three names": Case(Aliased, vectors, "net.2"),
    "called by keyword": Case(ByKeyword, vectors, "head"),
    "a linear layer alone": Case(lambda: nn.Linear(6, CLASSES), vectors, ""),
}


def built(case: Case) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = case.build()
    return model.eval()


def by_hand(model: nn.Module, head: str, batches: list[Inputs], limit: int | None = None) -> Tensor:
    """T3A's answer to the last of some batches, features taken by a hook of our own."""
    linear = model.get_submodule(head)
    weight, bias = (linear.get_parameter(name).detach() for name in ("weight", "bias"))
    got: list[Tensor] = []
    handle = linear.register_forward_pre_hook(
        lambda _module, args, kwargs: got.append([*args, *kwargs.values()][0].detach()), with_kwargs=True
    )
    with torch.no_grad():
        for batch in batches:
            batch.to(model)
    handle.remove()
    supports = torch.cat([weight, *got])
    p = (supports @ weight.T + bias).softmax(1)
    entropies, labels = -(p * p.log()).sum(1), p.argmax(1)
    sums = torch.zeros_like(weight)
    for label in range(len(weight)):
        mine = (labels == label).nonzero().flatten()
        for row in mine[entropies[mine].argsort()][:limit]:
            sums[label] += supports[row] / supports[row].norm()
    lengths = sums.norm(dim=1, keepdim=True)
    return got[-1] @ torch.where(lengths > 0, sums / lengths, 0.0).T


@pytest.mark.parametrize("name", list(FOUND))
def test_the_head_is_found_in_the_first_forward_and_t3a_works(name: str) -> None:
    case = FOUND[name]
    model = built(case)
    forwards: list[int] = []
    model.register_forward_hook(lambda *_: forwards.append(1))
    adapter = eq.create("t3a", model)
    fresh = snapshot(adapter)
    answers = [case.inputs(seed).to(adapter) for seed in (1, 2, 3)]
    assert len(forwards) == 3
    assert adapter.options["head"] == case.head
    for count, answer in enumerate(answers, start=1):
        expected = by_hand(model, case.head, [case.inputs(seed) for seed in range(1, count + 1)])
        assert answer.shape == (3, CLASSES)
        assert torch.allclose(answer, expected, rtol=1e-3, atol=1e-4)
    forwards.clear()
    predicted = case.inputs(3).to(adapter.predict)
    assert len(forwards) == 1
    assert torch.allclose(predicted, answers[2], rtol=1e-4, atol=1e-5)
    assert torch.allclose(case.inputs(3).to(adapter.detach()), predicted, rtol=1e-4, atol=1e-5)
    assert torch.equal(case.inputs(3).to(adapter.predict), predicted)
    adapter.reset()
    assert same(fresh, snapshot(adapter))
    assert torch.equal(case.inputs(1).to(adapter), answers[0])


@pytest.mark.parametrize("tempering", ["mean", "median", "sample"])
def test_tempering_shares_the_forward(tempering: str) -> None:
    model, source = make("batch_norm")
    forwards: list[int] = []
    model.register_forward_hook(lambda *_: forwards.append(1))
    adapter = eq.create("t3a", model, source, tempering=tempering)
    adapter(drifted(4))
    assert len(forwards) == 1
    adapter.predict(drifted(4))
    assert len(forwards) == 2


@pytest.mark.parametrize("build", [Halved, HalvedInPlace])
@pytest.mark.parametrize("limit", [None, 1, 2])
def test_a_named_head_gives_the_supports_their_logits(build: type[Halved], limit: int | None) -> None:
    case = Case(build, vectors, "head")
    model = built(case)
    adapter = eq.create("t3a", model, head="head", supports=limit)
    batches = [vectors(seed) for seed in range(8)]
    for count, batch in enumerate(batches, start=1):
        expected = by_hand(model, "head", batches[:count], limit)
        assert torch.allclose(batch.to(adapter), expected, rtol=1e-4, atol=1e-5)
        assert torch.allclose(batch.to(adapter.predict), expected, rtol=1e-4, atol=1e-5)
    adapter.reset()
    expected = by_hand(model, "head", batches[:1], limit)
    assert torch.allclose(batches[0].to(adapter), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [Halved, HalvedInPlace])
def test_a_model_that_goes_on_after_its_head_cannot_be_detached(build: type[Halved]) -> None:
    adapter = eq.create("t3a", built(Case(build, vectors, "head")), head="head")
    vectors(1).to(adapter)
    with pytest.raises(eq.errors.ModelError, match="the model goes on after its head 'head'"):
        adapter.detach()


@pytest.mark.parametrize("name", ["net.2", "head", "heads.first"])
def test_any_name_of_the_head_will_do(name: str) -> None:
    adapter = eq.create("t3a", built(FOUND["three names"]), head=name)
    assert adapter.options["head"] == name
    found = eq.create("t3a", built(FOUND["three names"]))
    assert torch.equal(vectors(1).to(adapter), vectors(1).to(found))


def test_a_model_that_changes_its_logits_needs_its_head_named() -> None:
    adapter = eq.create("t3a", built(Case(Halved, vectors, "")))
    with pytest.raises(eq.errors.ModelError, match=r"name the layer with head=\.\.\."):
        vectors(1).to(adapter)


def test_a_convolution_as_the_head_is_refused_and_other_methods_are_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, CLASSES, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    adapter = eq.create("t3a", model)
    with pytest.raises(eq.errors.ModelError, match=r"norm, tent, eta and sotta .* poise nothing"):
        adapter(drifted(4))


@pytest.mark.parametrize("name", ["4", "9", "nothing", "5.weight", 5, ""])
def test_a_name_that_is_no_linear_layer_is_refused_with_those_that_are(name: object) -> None:
    with pytest.raises(eq.errors.OptionError, match=r"\(5, 8\), got"):
        eq.create("t3a", batch_norm_model(), head=name)


def test_a_named_layer_that_does_not_run_is_refused() -> None:
    adapter = eq.create("t3a", built(Case(Halved, vectors, "")), head="spare")
    with pytest.raises(eq.errors.ModelError, match="'spare' did not run"):
        vectors(1).to(adapter)


def test_a_named_layer_of_other_shapes_is_refused_and_nothing_joins() -> None:
    adapter = eq.create("t3a", make("batch_norm")[0], head="5")
    before = snapshot(adapter)
    with pytest.raises(eq.errors.ModelError, match=r"\(4, 5\), got \(4, 64\) to \(4, 8\)"):
        adapter(drifted(4))
    assert same(before, snapshot(adapter))


class EachPixel(nn.Module):
    """Its head answers every pixel, and the model takes the first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(2).transpose(1, 2))
        return logits[:, 0]


@pytest.mark.parametrize("head", [None, "head"])
def test_a_head_that_gets_more_than_one_feature_a_sample_is_refused(head: str | None) -> None:
    adapter = eq.create("t3a", EachPixel(), head=head)
    with pytest.raises(eq.errors.ModelError, match=r"\(N, D\) features"):
        adapter(drifted(4))


def test_hooks_are_gone_after_every_forward() -> None:
    adapter = eq.create("t3a", WithLogits(make("batch_norm")[0]))
    adapter(pixel_values=drifted(4))
    with pytest.raises(TypeError):
        adapter(something_else=drifted(4))
    assert not any(module._forward_hooks for module in adapter.student.modules())
    assert math.isfinite(float(adapter.predict(pixel_values=drifted(4)).logits.sum()))


def test_a_head_that_runs_in_each_of_two_forwards_does_not_run_twice() -> None:
    adapter = eq.create("shot_im", make("batch_norm")[0], steps=2)  # both forwards are in one watched block
    adapter(drifted(8))
    assert adapter.last is not None
    assert adapter.last.updated
    assert adapter.responder.student.head == "8"
