"""Small classifiers as plain tensors and sums, to hold the methods to: nothing here is the package's.

Each model is a first layer (linear or convolution), a normalisation, a ReLU and a linear head, in double
precision; `ByHand` computes it from its weights, and the optimisers are their formulas.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

import equipoise as eq

EPSILON = 1e-5  # of torch's normalisation layers
CLASSES = 4


def filled(first: nn.Module, norm: nn.Module, features: int, seed: int) -> nn.Sequential:
    """With random weights; the seeds below make answers of many classes, sure and unsure."""
    head = nn.Linear(features, CLASSES)
    layers = {"first": first, "norm": norm, "relu": nn.ReLU(), "flat": nn.Flatten(), "head": head}
    model = nn.Sequential(OrderedDict(layers)).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.copy_(values.abs() + 0.5 if name == "norm.running_var" else values)
    return model.eval()


def flat_model() -> nn.Sequential:
    return filled(nn.Linear(6, 8), nn.BatchNorm1d(8), 8, seed=0)


def conv_model() -> nn.Sequential:
    return filled(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), 12, seed=7)


def layer_norm_model() -> nn.Sequential:
    return filled(nn.Linear(6, 8), nn.LayerNorm(8), 8, seed=7)


class Scale(nn.Module):
    """Logits that are its input times a weight of each class: what goes in comes out."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(classes, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "BatchNorm1d": flat_model,
    "BatchNorm2d": conv_model,
    "LayerNorm": layer_norm_model,
}


def stream(batches: int, rows: int = 7, *, like: nn.Sequential | None = None, seed: int = 3) -> list[Tensor]:
    """Batches from another domain; of small images where the model has convolutions."""
    convolution = like is not None and isinstance(like.get_submodule("first"), nn.Conv2d)
    shape = (rows, 2, 4, 4) if convolution else (rows, 6)
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) * 2 + 1 for _ in range(batches)]


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (x.unsqueeze(-2) * weight).sum(-1) + bias


def softmax(z: Tensor) -> Tensor:
    return z.exp() / z.exp().sum(1, keepdim=True)


def entropy(z: Tensor) -> Tensor:
    """In nats."""
    p = softmax(z)
    return -(p * p.log()).sum(1)


class Descent(Protocol):
    """An optimiser: how far a parameter moves, given its gradient."""

    def move(self, name: str, gradient: Tensor) -> Tensor: ...


class Momentum:
    """v ← .9 v + g; θ ← θ − rate · v."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.velocity: dict[str, Tensor] = {}

    def move(self, name: str, gradient: Tensor) -> Tensor:
        self.velocity[name] = 0.9 * self.velocity.get(name, torch.zeros_like(gradient)) + gradient
        return -self.rate * self.velocity[name]


class Adam:
    """m ← .9 m + .1 g; s ← .999 s + .001 g²; θ ← θ − rate · m̂ / (√ŝ + 1e-8), m̂ and ŝ without their start."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.moments: dict[str, tuple[int, Tensor, Tensor]] = {}

    def move(self, name: str, gradient: Tensor) -> Tensor:
        count, mean, square = self.moments.get(name, (0, torch.tensor(0.0), torch.tensor(0.0)))
        count, mean, square = count + 1, 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        self.moments[name] = count, mean, square
        return -self.rate * (mean / (1 - 0.9**count)) / ((square / (1 - 0.999**count)).sqrt() + 1e-8)


NORM = ("norm.weight", "norm.bias")
OPTIMIZERS: dict[str, Callable[[float], Descent]] = {"sgd": Momentum, "adam": Adam}


class ByHand:
    """One of the models above as it adapts.

    Attributes:
        source: the tensors it started from.
        weights: its parameters; `learned` are those that a step moves.
        mean: the running mean, where the model has one.
        var: the running variance.
        features: the inputs of the head in the last forward.
    """

    def __init__(self, model: nn.Sequential, learned: Iterable[str] = NORM) -> None:
        self.source = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.weights = {name: self.source[name].clone() for name, _ in model.named_parameters()}
        self.learned = tuple(learned)
        self.pools = "norm.running_mean" in self.source
        if self.pools:
            self.mean, self.var = self.source["norm.running_mean"], self.source["norm.running_var"]

    def hidden(self, x: Tensor) -> Tensor:
        weight, bias = self.weights["first.weight"], self.weights["first.bias"]
        if weight.ndim == 2:
            return linear(x, weight, bias)
        patches = x.unfold(2, 3, 1).unfold(3, 3, 1)  # (N, C, H, W, 3, 3)
        rows = patches.permute(0, 2, 3, 1, 4, 5).flatten(3)
        return linear(rows, weight.flatten(1), bias).permute(0, 3, 1, 2)

    @staticmethod
    def moments(h: Tensor) -> tuple[Tensor, Tensor, int]:
        """Of each channel: mean, biased variance, and over how many values."""
        values = h.transpose(0, 1).flatten(1)
        count = values.shape[1]
        mean = values.sum(1) / count
        return mean, ((values - mean[:, None]) ** 2).sum(1) / count, count

    def finish(self, h: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        w = self.weights
        if self.pools:
            mean, var, scale, shift = (
                t.reshape(-1, *[1] * (h.ndim - 2)) for t in (mean, var, w["norm.weight"], w["norm.bias"])
            )
        else:
            scale, shift = w["norm.weight"], w["norm.bias"]
        h = (h - mean) / (var + EPSILON).sqrt() * scale + shift
        self.features = h.clamp(min=0).flatten(1)
        return linear(self.features, w["head.weight"], w["head.bias"])

    def predict(self, x: Tensor) -> Tensor:
        """The logits with the running statistics."""
        h = self.hidden(x)
        if self.pools:
            return self.finish(h, self.mean, self.var)
        mean = h.sum(1, keepdim=True) / h.shape[1]
        return self.finish(h, mean, ((h - mean) ** 2).sum(1, keepdim=True) / h.shape[1])

    def forward(self, x: Tensor, momentum: float = 0.1) -> Tensor:
        """The logits with the batch's statistics, which the running ones follow."""
        if not self.pools:
            return self.predict(x)
        h = self.hidden(x)
        mean, var, count = self.moments(h)
        self.follow(mean, var * count / (count - 1), momentum)
        return self.finish(h, mean, var)

    def follow(self, mean: Tensor, var: Tensor, momentum: float) -> None:
        self.mean = (1 - momentum) * self.mean + momentum * mean.detach()
        self.var = (1 - momentum) * self.var + momentum * var.detach()

    def watch(self) -> None:
        """Begin a graph: derivatives are to be taken with respect to what is learned."""
        for name in self.learned:
            self.weights[name] = self.weights[name].detach().requires_grad_()

    def slope(self, loss: Tensor) -> dict[str, Tensor]:
        gradients = torch.autograd.grad(loss, [self.weights[name] for name in self.learned])
        return dict(zip(self.learned, gradients, strict=True))

    def descend(self, loss: Tensor, descent: Descent) -> None:
        for name, gradient in self.slope(loss).items():
            self.weights[name] = self.weights[name].detach() + descent.move(name, gradient)


class Learner(ByHand):
    """A model that is taught by a step a batch; a subclass has the loss.

    Attributes:
        used: the number of samples in the loss of the last batch; without any there is no step.
        lost: that loss.
        memory: what the method keeps besides the optimiser's state, by name.
    """

    def __init__(
        self,
        model: nn.Sequential,
        optimizer: str,
        rate: float,
        learned: Iterable[str] = NORM,
        momentum: float = 0.1,
    ) -> None:
        super().__init__(model, learned)
        self.optimizer, self.rate, self.momentum = optimizer, rate, momentum
        self.descent, self.used, self.lost = self.begin(), 0, 0.0
        self.memory: dict[str, Tensor] = {}

    def begin(self) -> Descent:
        """The optimiser at its start."""
        return OPTIMIZERS[self.optimizer](self.rate)

    def loss(self, z: Tensor, x: Tensor) -> tuple[Tensor, int]:
        """The loss of the logits of a batch, and how many samples are in it."""
        raise NotImplementedError

    def step(self, x: Tensor) -> Tensor:
        """The logits of before the step."""
        self.watch()
        z = self.forward(x, self.momentum)
        loss, self.used = self.loss(z, x)
        self.lost = float(loss.detach())
        if self.used:
            self.descend(loss, self.descent)
        return z.detach()


def close(came: Tensor, expected: Tensor, rtol: float = 1e-9) -> bool:
    return torch.allclose(came, expected.detach(), rtol=rtol, atol=rtol)


def assert_alike(adapter: eq.Adapter, expected: ByHand, rtol: float = 1e-9) -> None:
    """The weights and the running statistics are those computed here."""
    for name, parameter in adapter.student.named_parameters():
        assert close(parameter, expected.weights[name], rtol), name
    if expected.pools:
        assert close(adapter.student.get_buffer("norm.running_mean"), expected.mean, rtol)
        assert close(adapter.student.get_buffer("norm.running_var"), expected.var, rtol)
