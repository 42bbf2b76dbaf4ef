"""One step of source training: plain on the CPU, one CUDA graph on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from equipoise.core.graph import no_waiting
from equipoise.research.data.images import Images
from equipoise.research.experiment.repeatable import seeded

WARM_UP = 3
"""Steps before a capture, in which the libraries set themselves up; they are undone."""


class TrainingStep:
    """The mean cross-entropy of a batch, its gradient and the optimiser's step, on images that it holds.

    On a GPU the step is in bfloat16, and full batches replay a CUDA graph of it: the same kernels and bits
    without the time between kernels, which is most of it at these sizes (docs/experiments.md has the ratio).
    A model that waits for the GPU inside its forward cannot be captured and is trained without.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, images: Images, batch_size: int
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.device = next(model.parameters()).device
        self.pixels, self.labels = images.pixels.to(self.device), images.labels.to(self.device)
        self._rows = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        self._graph = self._capture() if self.device.type == "cuda" else None

    @property
    def captured(self) -> bool:
        """Whether full batches replay a graph."""
        return self._graph is not None

    def __call__(self, rows: Tensor) -> None:
        """Learn from the images of these rows, which are on the model's device."""
        if self._graph is None or len(rows) != len(self._rows):
            self._plain(rows)
        else:
            self._rows.copy_(rows)
            self._graph.replay()

    def _plain(self, rows: Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext():
            pixels = self.pixels[rows].float().contiguous(memory_format=layout(self.device))
            loss: Tensor = cross_entropy(self.model(pixels), self.labels[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with seeded("warm-up"), undone(self.model, self.optimizer):
            try:
                with no_waiting(), torch.cuda.stream(side):
                    for _ in range(WARM_UP):
                        self._plain(self._rows)
            except RuntimeError:
                return (
                    None  # it waits for the GPU; any other error comes up again in training without a graph
                )
            finally:
                torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._plain(self._rows)
        return graph


def layout(device: torch.device) -> torch.memory_format:
    """The memory format of images and kernels: on a GPU convolutions are faster with channels last."""
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


def on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The model there, with the weights of its convolutions in the order that is fastest there."""
    model.to(device)
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout(device))
    return model


@contextmanager
def undone(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Afterwards both are as before, in the same memory; new state of the optimiser is zero."""
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = {
        (parameter, name): value.clone()
        for parameter, state in optimizer.state.items()
        for name, value in state.items()
    }
    try:
        yield
    finally:
        model.load_state_dict(tensors)
        with torch.no_grad():
            for parameter, state in optimizer.state.items():
                for name, value in state.items():
                    value.copy_(states.get((parameter, name), torch.zeros_like(value)))
