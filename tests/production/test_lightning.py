"""A trainer's test and predict adapt by a callback, and leave the LightningModule as it was."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

import equipoise as eq
from equipoise.errors import OptionError
from equipoise.production.lightning import Adaptation
from tests.support.models import drifted, make, rehearsed, same

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about workers and loggers

BATCHES = [drifted(6, seed) for seed in range(4)]


class Classifier(LightningModule):
    """A module of a user, who knows nothing of adapters; its network is two levels down, and training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"network": make()[0].train()})
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner["network"](x)
        return logits

    def test_step(self, batch: Tensor) -> None:
        if self.fails:
            raise ZeroDivisionError
        self(batch)


class Noted(DummyLogger):
    """A logger that keeps the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


def poise(network: nn.Module) -> eq.Adapter:
    return eq.Poise(network, rehearsed(make()[1], "poise"))


def trainer(folder: Path, adaptation: Adaptation, logger: Noted | None = None) -> Trainer:
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=logger or False,
        callbacks=[adaptation],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def stream() -> DataLoader[Tensor]:
    batches: Any = BATCHES
    return DataLoader(batches, batch_size=None)


def expected() -> tuple[list[Tensor], list[dict[str, float]]]:
    """The answers of an adapter by itself, and its estimates."""
    adapter, answers, estimates = poise(make()[0]), [], []
    for batch in BATCHES:
        answers.append(adapter(batch))
        found = adapter.accuracy
        if found:
            names = ("estimated_accuracy", "estimated_accuracy_low", "estimated_accuracy_high")
            estimates.append(dict(zip(names, (found.value, found.low, found.high), strict=True)))
    return answers, estimates


def test_predict_adapts_and_the_module_is_as_before(tmp_path: Path) -> None:
    module, adaptation, logger = Classifier(), Adaptation("inner.network", poise), Noted()
    network, before = module.inner["network"], deepcopy(module.state_dict())
    training = [part.training for part in module.modules()]
    answers, estimates = expected()
    assert len(estimates) == len(BATCHES)
    for _ in range(2):  # each run starts from the classifier
        logger.rows.clear()
        came = trainer(tmp_path, adaptation, logger).predict(module, stream())
        assert came is not None
        for answer, wanted in zip(came, answers, strict=True):
            assert isinstance(answer, Tensor)
            assert torch.equal(answer, wanted)
        assert logger.rows == list(enumerate(estimates, 1))
        assert module.inner["network"] is network
        assert same(module.state_dict(), before)
        assert [part.training for part in module.modules()] == training
    assert adaptation.adapter is not None
    assert adaptation.adapter.last is not None


def test_a_test_returns_the_last_estimate(tmp_path: Path) -> None:
    module, logger = Classifier(), Noted()
    running = trainer(tmp_path, Adaptation("inner.network", poise), logger)
    (scores,) = running.test(module, stream(), verbose=False)
    _, estimates = expected()
    assert scores == pytest.approx(estimates[-1])
    assert logger.rows[: len(BATCHES)] == list(enumerate(estimates, 1))


def test_an_error_puts_the_classifier_back(tmp_path: Path) -> None:
    module, adaptation = Classifier(), Adaptation("inner.network", poise)
    module.fails, network = True, module.inner["network"]
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, adaptation).test(module, stream(), verbose=False)
    assert module.inner["network"] is network


def test_without_an_estimate_nothing_is_logged(tmp_path: Path) -> None:
    module, logger = Classifier(), Noted()
    adaptation = Adaptation("inner.network", lambda network: eq.create("norm", network))
    assert trainer(tmp_path, adaptation, logger).test(module, stream(), verbose=False) == [{}]
    assert not any(values for _, values in logger.rows)


@pytest.mark.parametrize("part", ["", "network", "inner.other"])
def test_a_part_that_is_not_there_is_named(part: str, tmp_path: Path) -> None:
    words = f"expected the name of a part of Classifier, such as inner, inner.network, got {part!r}"
    with pytest.raises(OptionError, match=words):
        trainer(tmp_path, Adaptation(part, poise)).test(Classifier(), stream(), verbose=False)
