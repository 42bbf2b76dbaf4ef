"""What the step of source training undoes and refuses; its graph needs a GPU (test_training_on_cuda.py)."""

import pytest
import torch
from torch import nn

from equipoise.research.experiment.recipe import Training
from equipoise.research.experiment.training import TrainingStep, make_optimizer, undone

from .toy import toy_images


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_undone_steps_leave_no_trace(kind: str, steps_before: int) -> None:
    """Two steps, with others that were undone in between, are two steps."""
    images = toy_images("plain", 8)
    settings = Training.model_validate(
        {"optimizer": kind, "learning_rate": 1e-2, "epochs": 1, "batch_size": 4}
    )
    found = []
    for undo in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 3), nn.BatchNorm1d(3))
        optimizer = make_optimizer(model, settings)
        step = TrainingStep(model, optimizer, images, 4)
        assert not step.captured  # there is no graph on a CPU
        for _ in range(steps_before):
            step(torch.arange(4))
        memory = [tensor.data_ptr() for tensor in model.state_dict().values()]
        if undo:
            with undone(model, optimizer):
                step(torch.arange(4, 8))
        assert [tensor.data_ptr() for tensor in model.state_dict().values()] == memory
        step(torch.arange(2, 6))
        found.append(
            [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
        )
    assert len(found[0]) > 9
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_what_is_undone_is_undone_after_an_error_too() -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    with pytest.raises(KeyboardInterrupt), undone(model, torch.optim.Adam(model.parameters())):
        model.weight.data.add_(1)
        raise KeyboardInterrupt
    assert torch.equal(model.weight, before)
