"""The paper's small network for digits."""

from torch import Tensor, nn

from equipoise.errors import ModelError


class SmallCNN(nn.Module):
    """Two 5×5 convolutions and three dense layers for 32×32 images with raw values from 0 to 255.

    conv 32, batch norm, pool → conv 64, batch norm, pool → dense 64 → dense 64 → dense `num_classes`, ReLU
    between. For ten classes and one channel it has 319,498 parameters in the paper's way of counting
    (weights and running statistics). The paper's figure of the network is lost: this is the simplest
    stack with that number, so the architecture is inferred. There is no rescaling inside: the first
    batch norm takes raw values.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 32, 5, padding=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 8 * 8, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, num_classes)
        self.in_channels = in_channels

    def forward(self, images: Tensor) -> Tensor:
        """Logits of (N, in_channels, 32, 32) images."""
        if tuple(images.shape[1:]) != (self.in_channels, 32, 32):
            raise ModelError(
                f"expected images of shape (N, {self.in_channels}, 32, 32), got {tuple(images.shape)}"
            )
        logits: Tensor = self.head(self.features(images.to(self.head.weight.dtype)))
        return logits
