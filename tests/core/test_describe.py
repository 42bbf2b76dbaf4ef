"""The description of an adapter: what learns and follows the stream, and why something does not."""

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from tests.support.models import drifted, make, rehearsed


def lines(adapter: eq.Adapter) -> dict[str, str]:
    """The description as names to texts."""
    text = adapter.describe()
    assert type(text) is str
    assert all(len(line) < 160 for line in text.splitlines())
    return {name: rest.strip() for name, _, rest in (line.partition("  ") for line in text.splitlines())}


def test_poise_before_and_after_the_first_batch() -> None:
    model, source = make()
    adapter = eq.Poise(model, rehearsed(source, "poise"))
    found = lines(adapter)
    weights = sum(p.numel() for p in model.parameters())
    assert found["poise"] == f"on Sequential with {weights:,} parameters, 5 classes"
    assert found["learns"] == "no parameters: no gradient steps"
    assert found["statistics"] == "running statistics of 2 layers (1, 6) follow the stream"
    assert found["prototypes"] == "on the linear head, which the first batch finds"
    assert found["tempering"].startswith("rehearsed on ")
    assert found["tempering"].endswith("accuracy is estimated; the source model may answer")
    assert found["runs"] == f"{adapter.execution}, fp32"
    assert found["holds"].endswith("on cpu; stores no samples")
    adapter(drifted(6))
    assert lines(adapter)["prototypes"] == "on the linear head '8', 8 features to 5 classes"


def test_methods_that_learn_by_gradients() -> None:
    model, source = make()
    found = lines(eq.create("tent", model, source))
    assert found["learns"] == "24 parameters of 2 layers (1, 6)"
    assert found["prototypes"] == "none: tent uses none"
    assert found["tempering"] == "none; accuracy is not estimated"
    assert "of 5 layers (0, 1, 5, …, 8)" in lines(eq.DEC(model, source))["learns"]
    assert lines(eq.create("t3a", model, head="8"))["prototypes"].startswith("on the linear head '8'")
    assert lines(eq.create("t3a", model))["statistics"] == "none: t3a leaves running statistics as they are"
    assert "stores samples as they came" in lines(eq.create("sotta", model))["holds"]


def test_a_tempered_adapter_describes_its_own_temper() -> None:
    model, source = make()
    adapter = eq.Tempered(eq.create("tent", model), source)
    assert lines(adapter)["tempering"] == "median; accuracy is not estimated"
    adapter(drifted(6))
    assert lines(adapter)["learns"] == "24 parameters of 2 layers (1, 6)"


def test_a_rehearsal_that_is_not_used_is_named() -> None:
    model, source = make()
    adapter = eq.create("tent", model, rehearsed(source, "poise"))
    assert lines(adapter)["tempering"] == (
        'none; accuracy is not estimated; tempering="rehearsed" would use the rehearsal of poise'
    )


class ByConvolution(nn.Module):
    """A classifier whose head is a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).mean((2, 3), keepdim=True)).flatten(1)
        return logits


class Scaled(nn.Module):
    """A classifier that changes the output of its linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(108, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = 2 * self.head(x.flatten(1))
        return logits


BY_HAND = eq.SourceStatistics(h0=0.5, kappa=2.0, num_classes=5)


def test_a_convolutional_head_has_no_prototypes() -> None:
    adapter = eq.Poise(ByConvolution(), BY_HAND)
    for _ in range(2):
        found = lines(adapter)
        assert found["prototypes"] == (
            "none: the logits are not the output of an nn.Linear; the last layer is 'head', a Conv2d"
        )
        assert found["statistics"] == "none: the model has no normalisation layer with running statistics"
        adapter(drifted(6))
    assert not adapter.memory


def test_a_head_whose_output_is_changed_has_none_either() -> None:
    adapter = eq.Poise(Scaled(), BY_HAND)
    adapter(drifted(6))
    assert lines(adapter)["prototypes"].startswith("none: the logits are not the output of an nn.Linear")


class Other(nn.Linear):
    """A linear layer with a forward of its own; as a model, it has no other layer."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x.flatten(1))


class First(nn.Module):
    """A classifier whose linear layer runs on both halves of an image, of which the first is the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(54, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.reshape(len(x), 2, 54).transpose(0, 1).contiguous())[0]
        return logits


class OwnWeights(nn.Module):
    """A classifier without layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(108, 5))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight


def test_a_model_without_prototypes_says_why() -> None:
    shared = nn.Linear(108, 108)
    reasons = {
        nn.Sequential(nn.Flatten(), shared, shared): "the linear layer '1' runs more than once",
        nn.Sequential(Other(108, 5)): "the linear layer '0' has a forward that is not nn.Linear's",
        Other(108, 5): "the linear layer of the model itself has a forward that is not nn.Linear's",
        First(): "the linear layer 'head' turns (2, 6, 54) into (2, 6, 5), and the logits are (6, 5)",
        OwnWeights(): (
            "the logits are not the output of an nn.Linear; the last layer is the model itself, a OwnWeights"
        ),
    }
    for model, reason in reasons.items():
        classes = model(drifted(1)).shape[-1]
        adapter = eq.Poise(model, eq.SourceStatistics(h0=0.5, kappa=2.0, num_classes=classes))
        adapter(drifted(6))
        assert lines(adapter)["prototypes"] == f"none: {reason}"


@pytest.mark.filterwarnings("ignore")  # torch.ao is to move to another package
def test_a_quantised_head_has_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.backends.quantized.supported_engines[1:]:
        pytest.skip("no engine for quantised layers here")
    engine = torch.backends.quantized.supported_engines[-1]
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    model = torch.ao.quantization.quantize_dynamic(make()[0].eval(), {nn.Linear}, dtype=torch.qint8)
    adapter = eq.Poise(model, BY_HAND)
    adapter(drifted(6))
    assert lines(adapter)["prototypes"].endswith("the last layer is '8', a quantised Linear")
