"""Each method the way its authors' code does it, in plain eager PyTorch: what ours is timed against.

Written from descriptions of the authors' programs, not from their text. All have `step(x)`, which returns the
logits of a batch and learns from it. Two things are ours: normalisation layers of every kind learn, where
some authors take 2-d batch norm only or leave out layers by name; and `Windowed`, because the authors'
programs have no answer to batches of one sample on batch norm.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, linear, normalize, one_hot
from torch.nn.modules.batchnorm import _BatchNorm

NORMALISATION = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)


class Reference(ABC):
    """A model that answers batches and may learn from them."""

    model: nn.Module

    @abstractmethod
    def step(self, x: Tensor) -> Tensor:
        """The logits of a batch."""


def entropy(logits: Tensor) -> Tensor:
    """Entropy of softmax(logits) in nats, one number a sample."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def norm_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Let the normalisation layers' weights and biases learn, and nothing else; gives them by name."""
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, NORMALISATION):
            module.requires_grad_(True)
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def set_momentum(model: nn.Module, momentum: float) -> None:
    """How fast the running statistics of batch norms follow."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = momentum


class Source(Reference):
    """The model as it is, in eval mode: the plain forward."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def step(self, x: Tensor) -> Tensor:
        """One forward."""
        with torch.no_grad():
            logits: Tensor = self.model(x)
            return logits


class Norm(Source):
    """Batch norms in train mode: the statistics of the batch; the rest of the model in eval mode."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        for module in self.model.modules():
            if isinstance(module, _BatchNorm):
                module.train()


class Tent(Reference):
    """A step down the mean entropy; the whole model in train mode, batch norms without running statistics."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).train()
        self.learned = norm_parameters(self.model)
        for module in self.model.modules():
            if isinstance(module, _BatchNorm):
                module.track_running_stats = False
                module.running_mean = module.running_var = None
        self.optimizer = self.make_optimizer()

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam at 1e-3."""
        return torch.optim.Adam(self.learned.values(), lr=1e-3)

    def step(self, x: Tensor) -> Tensor:
        """Forward, backward, step; the answer is of before the step."""
        logits: Tensor = self.model(x)
        entropy(logits).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return logits.detach()


class Eta(Tent):
    """TENT on the samples that are reliable and new, picked by index."""

    def __init__(
        self, model: nn.Module, margin: float = 0.4, epsilon: float = 0.05, rate: float = 2.5e-4
    ) -> None:
        self.margin, self.epsilon, self.rate = margin, epsilon, rate
        super().__init__(model)
        self.average: Tensor | None = None

    def make_optimizer(self) -> torch.optim.Optimizer:
        """SGD with momentum .9."""
        return torch.optim.SGD(self.learned.values(), lr=self.rate, momentum=0.9)

    def step(self, x: Tensor) -> Tensor:
        """Two filters, then a step on what is left, if anything is."""
        logits: Tensor = self.model(x)
        limit = self.margin * math.log(logits.shape[1])
        entropies = entropy(logits)
        reliable = (entropies < limit).nonzero().flatten()
        entropies, probabilities = entropies[reliable], logits[reliable].detach().softmax(1)
        if self.average is not None:
            likeness = cosine_similarity(self.average.unsqueeze(0), probabilities, dim=1).abs()
            new = (likeness < self.epsilon).nonzero().flatten()
            entropies, probabilities = entropies[new], probabilities[new]
        if len(entropies) > 0:
            mean = probabilities.mean(0)
            self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean
            weights = 1 / (entropies.detach() - limit).exp()
            loss = (weights * entropies).mean() + self.penalty()
            loss.backward()
            self.optimizer.step()
        self.optimizer.zero_grad()
        return logits.detach()

    def penalty(self) -> Tensor | float:
        """What holds the weights back: nothing."""
        return 0.0


class Eata(Eta):
    """ETA, held to the source weights by a Fisher diagonal, parameter by parameter."""

    def __init__(self, model: nn.Module, fisher: Mapping[str, Tensor], **options: float) -> None:
        super().__init__(model, **options)
        self.anchors = {
            name: (fisher[name].to(p.device), p.detach().clone()) for name, p in self.learned.items()
        }

    def penalty(self) -> Tensor | float:
        """2000 · Σ F (θ − θ⁰)²."""
        total: Tensor | float = 0.0
        for name, (fisher, start) in self.anchors.items():
            total = total + 2000.0 * (fisher * (self.learned[name] - start) ** 2).sum()
        return total


class T3A(Reference):
    """Prototypes from supports, which are kept as they came, sorted again and cut for each class."""

    def __init__(self, model: nn.Module, limit: int) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        *_, self.head = (module for module in self.model.modules() if isinstance(module, nn.Linear))
        self.head.register_forward_pre_hook(self._see)
        self.limit = limit
        logits = linear(self.head.weight, self.head.weight, self.head.bias)
        self.supports, self.entropies = self.head.weight.detach(), entropy(logits)
        self.labels = one_hot(logits.argmax(1), len(logits)).float()

    def _see(self, _head: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.features: Tensor = inputs[0]

    def step(self, x: Tensor) -> Tensor:
        """The batch joins the supports, those over the limit leave, and the rest score the batch."""
        with torch.no_grad():
            logits = self.model(x)
            labels = one_hot(logits.argmax(1), logits.shape[1]).float()
            self.supports = torch.cat([self.supports, self.features])
            self.labels = torch.cat([self.labels, labels])
            self.entropies = torch.cat([self.entropies, entropy(logits)])
            self._filter()
            prototypes = normalize(normalize(self.supports, dim=1).T @ self.labels, dim=0)
            return self.features @ prototypes

    def _filter(self) -> None:
        classes, kept = self.labels.argmax(1), []
        for each in range(self.labels.shape[1]):
            own = (classes == each).nonzero().flatten()
            kept.append(own[self.entropies[own].argsort()[: self.limit]])
        index = torch.cat(kept)
        self.supports, self.labels = self.supports[index], self.labels[index]
        self.entropies = self.entropies[index]


class SoTTA(Reference):
    """A memory of confident samples, each asked about alone, and a sharpness-aware step every 64 samples."""

    capacity, every, rho = 64, 64, 0.05

    def __init__(self, model: nn.Module, classes: int, confidence: float) -> None:
        self.model = copy.deepcopy(model).eval()
        self.learned = list(norm_parameters(self.model).values())
        set_momentum(self.model, 0.2)
        self.optimizer = torch.optim.Adam(self.learned, lr=1e-3)
        self.confidence, self.waiting = confidence, 0
        self.memory: list[list[Tensor]] = [[] for _ in range(classes)]
        self.random = np.random.default_rng(0)

    def step(self, x: Tensor) -> Tensor:
        """Answer the batch in eval mode, then look at its samples one by one."""
        with torch.no_grad():
            answer: Tensor = self.model(x)
        for sample in x.split(1):
            self._offer(sample)
            self.waiting += 1
            if self.waiting == self.every:
                self.waiting = 0
                self._update()
        return answer

    def _offer(self, sample: Tensor) -> None:
        with torch.no_grad():
            certainty, label = self.model(sample).softmax(1).max(1)
        if float(certainty) < self.confidence:
            return
        own = int(label)
        if sum(len(each) for each in self.memory) == self.capacity:
            most = max(len(each) for each in self.memory)
            largest = [at for at, each in enumerate(self.memory) if len(each) == most]
            victim = self.memory[own if own in largest else int(self.random.choice(largest))]
            victim.pop(int(self.random.integers(len(victim))))
        self.memory[own].append(sample)

    def _update(self) -> None:
        samples = [sample for each in self.memory for sample in each]
        if not samples:
            return
        memory = torch.cat(samples)
        self.model.train()
        self._backward(memory)
        slopes = [p.grad for p in self.learned if p.grad is not None]
        scale = self.rho / (torch.stack([slope.norm() for slope in slopes]).norm() + 1e-12)
        before = [p.detach().clone() for p in self.learned]
        with torch.no_grad():
            for parameter, slope in zip(self.learned, slopes, strict=True):
                parameter.add_(slope * scale)
        self.optimizer.zero_grad()
        self._backward(memory)
        with torch.no_grad():
            for parameter, start in zip(self.learned, before, strict=True):
                parameter.copy_(start)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.model.eval()

    def _backward(self, memory: Tensor) -> None:
        p = self.model(memory).softmax(1)
        (-(p * (p + 1e-6).log()).sum(1).mean()).backward()


class Dec(Reference):
    """The paper's DEC: the teacher a frozen copy, the student all of whose weights take a step of SGD."""

    t_min, t_max = 1.0, 3.0

    def __init__(self, model: nn.Module, h0: float, kappa: float, rate: float = 1e-7) -> None:
        self.teacher = copy.deepcopy(model).eval().requires_grad_(False)
        self.model = copy.deepcopy(model).train().requires_grad_(True)
        set_momentum(self.model, 0.01)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.h0, self.kappa = h0, kappa

    def step(self, x: Tensor) -> Tensor:
        """Teacher's targets, student's step; the student's logits divided by avg(tau)."""
        with torch.no_grad():
            z = self.teacher(x)
            surprise = (entropy(z) / math.log(2) - self.h0) / math.sqrt(math.log2(z.shape[1]))
            t = self.t_min + surprise.sigmoid() * (self.t_max - self.t_min)
            tau = t * self.kappa / z.norm(dim=1)
            targets = (z / tau.unsqueeze(1)).softmax(1)
        logits: Tensor = self.model(x)
        temperature: Tensor = tau.mean()
        loss = temperature**2 * -(targets * logits.log_softmax(1)).sum(1).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return logits.detach() / temperature


class Windowed(Reference):
    """Batches of one sample: the last 16 as one batch, with a step each 16 samples and a forward between."""

    size = 16

    def __init__(self, method: Reference) -> None:
        self.method, self.model, self.waiting = method, method.model, 0
        self.samples: list[Tensor] = []

    def step(self, x: Tensor) -> Tensor:
        """The logits of the last sample."""
        self.samples = [*self.samples, x][-self.size :]
        self.waiting += 1
        together = torch.cat(self.samples)
        if self.waiting == self.size:
            self.waiting = 0
            return self.method.step(together)[-1:]
        with torch.no_grad():
            logits: Tensor = self.model(together)
        return logits[-1:]
