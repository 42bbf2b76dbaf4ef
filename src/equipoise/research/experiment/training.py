"""Train a source model by the paper's recipe; the same seed gives the same model, even after a kill."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from equipoise.core.graph import no_waiting
from equipoise.errors import StateError
from equipoise.files import read_tensors, write_tensors
from equipoise.network.named_tensors import part, prefixed
from equipoise.research.data.images import Images
from equipoise.research.experiment.plan import ModelPlan
from equipoise.research.experiment.recipe import Training
from equipoise.research.experiment.repeatable import repeatable, seeded
from equipoise.research.experiment.trained_model import (
    layout,
    load_source_model,
    model_path,
    new_model,
    on_device,
    pick_device,
    source_images,
    write_source_model,
)

_KIND, _VERSION = "equipoise unfinished training", 1
_MODEL, _OPTIMIZER = "model.", "optimizer."
WARM_UP = 3
"""Steps before a capture, in which the libraries set themselves up; they are undone."""


def train_source_model(plan: ModelPlan, folder: Path) -> str:
    """Train, measure and write a model, unless it is there; a training that was killed goes on.

    A damaged file is replaced, and a model that an older version measured is measured again. Returns a
    sentence that says so, or an empty one.
    """
    path = model_path(folder, plan.key)
    remark = ""
    try:
        stored = load_source_model(path, "cpu")
        if stored.source.entropies.numel():
            return remark
        with repeatable():
            write_source_model(path, on_device(stored.model, pick_device()), source_images(plan), plan)
        return f"{path}: measured by an older version; {plan.name} is measured again"
    except FileNotFoundError:
        pass
    except StateError as error:
        remark = f"{error}; {plan.name} is trained again"
    images = source_images(plan)
    partial = path.with_suffix(".partial.safetensors")
    with repeatable():
        model = on_device(new_model(plan, images.pixels.shape[1]), pick_device())
        fit(model, images, plan.training, plan.seed, partial)
        write_source_model(path, model, images, plan)
    partial.unlink(missing_ok=True)
    return remark


def fit(model: nn.Module, images: Images, training: Training, seed: int, partial: Path | None = None) -> None:
    """Minimise the cross-entropy in place and leave the model in evaluation mode.

    The state after each epoch goes to the file `partial`, where the next call finds it: each epoch draws its
    own random numbers from the seed and its own number, so that nothing is lost.
    """
    device = next(model.parameters()).device
    optimizer = make_optimizer(model, training)
    done = _resume(model, optimizer, partial)
    model.train()
    step = TrainingStep(model, optimizer, images, training.batch_size)
    for epoch in range(done, training.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed * 100_003 + epoch))
        with seeded(seed, epoch):
            for rows in _batches(order.to(device), training.batch_size):
                step(rows)
        if partial is not None and epoch + 1 < training.epochs:
            _save(model, optimizer, partial, epoch + 1)
    model.eval()


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """The paper's optimisers, with Keras' defaults for what it does not give."""
    parameters = list(model.parameters())
    capturable = parameters[0].is_cuda
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.learning_rate, eps=1e-7, capturable=capturable)
    return torch.optim.RMSprop(
        parameters, lr=training.learning_rate, alpha=0.9, eps=1e-7, capturable=capturable
    )


def _batches(order: Tensor, size: int) -> Iterator[Tensor]:
    """Batches in order; a last one of a single image would have no batch statistics and is left out."""
    for rows in order.split(size):
        if len(rows) > 1 or len(order) == 1:
            yield rows


def _save(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path, epochs: int) -> None:
    tensors = prefixed(_MODEL, model.state_dict())
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"{_OPTIMIZER}{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    write_tensors(path, _KIND, _VERSION, tensors, {"epochs": str(epochs)})


def _resume(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path | None) -> int:
    """Restore the state after the last finished epoch and return its number; 0 for a damaged file."""
    if path is None or not path.exists():
        return 0
    try:
        tensors, text = read_tensors(path, _KIND, _VERSION)
    except StateError:
        return 0
    model.load_state_dict(part(tensors, _MODEL))
    state: dict[int, dict[str, Tensor]] = {}
    parameters = list(model.parameters())
    for name, tensor in part(tensors, _OPTIMIZER).items():
        index, _, entry = name.partition(".")
        like = parameters[int(index)]
        if tensor.shape == like.shape:  # in the same order in memory, so that the same kernels take both
            tensor = torch.empty_like(like, device="cpu", requires_grad=False).copy_(tensor)
        state.setdefault(int(index), {})[entry] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return int(text["epochs"])


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
