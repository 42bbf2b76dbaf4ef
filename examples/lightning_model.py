"""A LightningModule, trained by a Trainer, and adapted while one tests it: `python lightning_model.py`."""

import lightning
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.metrics import Summary
from equipoise.production.lightning import Adaptation
from house_numbers import images, network

Batch = list[Tensor]


class Classifier(lightning.LightningModule):
    """An ordinary module of Lightning: images to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.summary = Summary()

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.network(inputs)
        return logits

    def training_step(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        inputs, labels = batch
        return cross_entropy(self(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.003)

    def test_step(self, batch: Batch) -> None:
        """Measure the answers to a batch."""
        inputs, labels = batch
        self.summary.update(logits=self(inputs), target=labels)

    def on_test_epoch_end(self) -> None:
        """Log the scores of the stream."""
        values = self.summary.compute()
        self.log_dict({"accuracy": values.accuracy, "ece": values.expected_calibration_error})


def trainer(*callbacks: Adaptation, epochs: int = 1) -> lightning.Trainer:
    """A trainer that writes no files."""
    return lightning.Trainer(
        callbacks=list(callbacks),
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def main() -> dict[str, float]:
    """Train, rehearse, adapt; returns the scores of the stream."""
    lightning.seed_everything(0, verbose=False)
    inputs, labels = images("house numbers", 1000)
    model = Classifier()
    trained_on = TensorDataset(inputs[:800], labels[:800])
    trainer(epochs=6).fit(model, DataLoader(trained_on, batch_size=50, shuffle=True))
    model.eval()

    # Leave samples= and shifts= away: a small rehearsal saves time here.
    held_out = [(inputs[800:], labels[800:])]
    source = eq.rehearse(model.network, held_out, samples=200, shifts=8, progress=False)

    stream = DataLoader(TensorDataset(*images("stream", 400)), batch_size=50)
    adaptation = Adaptation("network", lambda network: eq.Poise(network, source))
    (scores,) = trainer(adaptation).test(model, stream, verbose=False)
    print({name: round(value, 3) for name, value in scores.items()})
    return dict(scores)


if __name__ == "__main__":
    main()
