"""The paper's networks, and any of timm's, as classifiers of raw images."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from equipoise.errors import ModelError, StateError

__all__ = ["SmallCNN", "create_backbone", "list_backbones"]


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


InitialWeights: TypeAlias = Path | Literal["hub"] | None
"""Weights before training: a safetensors file, timm's weights from its hub, or random numbers."""

SMALL_CNN = "smallcnn"


@dataclass(frozen=True)
class Body:
    """A network of timm, and the normalisation of images for its weights.

    Attributes:
        name: timm's name, with the tag of its weights.
        arguments: what else `timm.create_model` gets.
        mean: subtracted from values in 0..1; None: timm's value for these weights.
        std: divides them.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


# Keras drops blocks of EfficientNet in training, at a rate up to .2, unless told not to; the paper uses it as
# it is.
_DROP_PATH = {"drop_path_rate": 0.2}
_HUB = {
    "efficientnet_b0": Body("tf_efficientnet_b0.aa_in1k", _DROP_PATH),
    "mobilenet_v1": Body("mobilenetv1_100.ra4_e3600_r224_in1k"),
}
# Files of these names hold the weights of Keras under timm's names of the parameters. Keras pads MobileNet's
# images at the right and bottom only, and its batch norm adds more to the variance.
_FILE = {
    "efficientnet_b0": Body(
        "tf_efficientnet_b0", _DROP_PATH, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    ),
    "mobilenet_v1": Body(
        "mobilenetv1_100", {"pad_type": "same", "bn_eps": 1e-3}, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
    ),
}


def list_backbones() -> list[str]:
    """The paper's networks; `create_backbone` takes every name of timm's as well."""
    return [SMALL_CNN, *_HUB]


def check_backbone(name: str) -> None:
    """ModelError for a name that `create_backbone` does not take."""
    if name not in list_backbones():
        _check_timm_name(name)


def create_backbone(
    name: str,
    num_classes: int,
    *,
    weights: InitialWeights = None,
    in_channels: int = 3,
    input_size: int | None = None,
    load: bool = True,
) -> nn.Module:
    """A classifier of raw images, with values from 0 to 255, by name.

    "smallcnn", "efficientnet_b0", "mobilenet_v1" or any name of timm's. The paper adds a dense layer to the
    network's features ("we flatten the output"); here it is on the features averaged over the image, timm's
    own classifier with `num_classes` outputs, and starts as a dense layer of Keras does (Glorot's uniform
    numbers, a bias of zero). For few classes timm's own start of these networks is several times as large,
    and its first gradients harm the ImageNet weights (docs/results.md has both). Heads of timm's that are
    not one linear layer start as timm draws them. `torch.manual_seed` decides the numbers.

    Args:
        name: the network.
        num_classes: outputs of its last layer.
        weights: the ImageNet weights to start from: "hub" (timm downloads them), a safetensors file with
            timm's names of the parameters, or None for random ones. Those of the last layer are left out.
        in_channels: of the images; grey ones are shown three times to a network that knows colours.
        input_size: the side that images are resized to inside the model, before anything else; None: as they
            are.
        load: False makes the network that takes these weights, without reading them: what `load_state_dict`
            of a trained one needs.
    """
    if name == SMALL_CNN:
        if weights is not None or input_size not in (None, 32):
            raise ModelError(
                "smallcnn takes images of 32 pixels and has no ImageNet weights: expected input_size=None "
                f"and weights=None, got {input_size} and {weights}"
            )
        return SmallCNN(num_classes, in_channels)
    body = (_FILE if isinstance(weights, Path) else _HUB).get(name, Body(name))
    from_hub = weights == "hub" and load
    try:
        if from_hub:
            reach_hub(body.name)
        return Backbone(body, num_classes, weights if load else None, in_channels, input_size)
    except (OSError, RuntimeError) as error:
        if not from_hub:
            raise
        raise ModelError(
            f"{body.name}: its ImageNet weights could not be had from the hub ({error}); download them "
            "elsewhere and put the safetensors file, with timm's names of the parameters, at "
            f"DATA/weights/{name}.safetensors, where DATA is the folder of --data (see "
            "docs/experiments.md)"
        ) from error


class Backbone(nn.Module):
    """A network of timm's with its preprocessing inside: ((x / 255) - mean) / std, resized if asked to."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, body: Body, num_classes: int, weights: InitialWeights, in_channels: int, input_size: int | None
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.body = _timm_model(body, num_classes, weights == "hub")
        if isinstance(self.body.get_classifier(), nn.Linear):
            _start_as_dense(self.body.get_classifier())
        if isinstance(weights, Path):
            _load_file(self.body, weights)
        known = self.body.pretrained_cfg
        self._channels(in_channels, known.get("input_size", (3, 0, 0))[0])
        for buffer, given in (("mean", body.mean or known["mean"]), ("std", body.std or known["std"])):
            self.register_buffer(buffer, torch.tensor(given).view(-1, 1, 1) * 255, persistent=False)

    def _channels(self, came: int, known: int) -> None:
        if came not in (1, known):
            raise ModelError(f"expected images of 1 or {known} channels, got {came}")
        self.in_channels = came

    def forward(self, images: Tensor) -> Tensor:
        """Logits of (N, channels, height, width) images with values from 0 to 255."""
        if images.ndim != 4 or images.shape[1] != self.in_channels:
            raise ModelError(
                f"expected images of shape (N, {self.in_channels}, height, width), got {tuple(images.shape)}"
            )
        values = images.to(self.mean.dtype)
        if self.input_size is not None and tuple(values.shape[2:]) != (self.input_size, self.input_size):
            values = interpolate(values, (self.input_size, self.input_size), mode="bilinear", antialias=True)
        logits: Tensor = self.body((values - self.mean) / self.std)
        return logits


def _check_timm_name(name: str) -> Any:
    """The module timm, if it has a network of the name."""
    try:
        import timm
    except ModuleNotFoundError as missing:
        raise ModelError(
            f"{name} comes from timm, which is not installed: pip install 'equipoise[bench]'"
        ) from missing
    if not timm.is_model(name):
        raise ModelError(
            f"no network {name!r}: there are {', '.join(list_backbones())}, and timm.list_models() has others"
        )
    return timm


def _timm_model(body: Body, num_classes: int, pretrained: bool) -> Any:
    timm = _check_timm_name(body.name)
    return timm.create_model(body.name, pretrained=pretrained, num_classes=num_classes, **body.arguments)


def _start_as_dense(layer: nn.Linear) -> None:
    """Keras' defaults for a dense layer."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _load_file(body: Any, path: Path) -> None:
    """Everything but the last layer, from a safetensors file of any precision."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise StateError(f"{path}: expected a safetensors file of ImageNet weights: {error}") from error
    head = f"{body.default_cfg['classifier']}."
    wanted = {name: t for name, t in body.state_dict().items() if not name.startswith(head)}
    given = {name: t for name, t in tensors.items() if not name.startswith(head)}
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}
    missing, unknown = sorted(wanted.keys() - given.keys() - counters), sorted(given.keys() - wanted.keys())
    wrong = sorted(n for n in given.keys() & wanted.keys() if given[n].shape != wanted[n].shape)
    if missing or unknown or wrong:
        raise StateError(
            f"{path}: expected the weights of {type(body).__name__} under timm's names; "
            f"missing {missing[:3]}, unknown {unknown[:3]}, of another shape {wrong[:3]}"
        )
    body.load_state_dict({name: t.to(wanted[name].dtype) for name, t in given.items()}, strict=False)


def weights_digest(weights: InitialWeights, name: str) -> str:
    """A hash of a file of initial weights, or the name of other ones."""
    if isinstance(weights, Path):
        return hashlib.blake2b(weights.read_bytes(), digest_size=16).hexdigest()
    return "random" if weights is None else f"hub {_HUB.get(name, Body(name)).name}"


WEIGHTS_FILE = "model.safetensors"
SECONDS = 3.0
"""The longest wait for an answer of the hub."""


def reach_hub(name: str) -> None:
    """Raise OSError if the weights of a network of timm's are not here and the hub does not answer.

    One short request: the client of the hub itself would try six times, and each file by another name again.
    """
    import timm
    from huggingface_hub import model_info, try_to_load_from_cache

    known = timm.get_pretrained_cfg(name)
    if known is None or not known.hf_hub_id:
        return  # timm raises its own error, or downloads from elsewhere
    if isinstance(try_to_load_from_cache(known.hf_hub_id, WEIGHTS_FILE), str):
        return
    try:
        model_info(known.hf_hub_id, timeout=SECONDS)
    except Exception as error:  # of requests or of httpx, by the version of the client
        raise OSError(f"the hub does not answer: {error}") from error
