"""The networks of the experiments: raw images in, the right preprocessing inside, weights from a file."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

import equipoise as eq
from equipoise.errors import ModelError, StateError
from equipoise.research import models
from equipoise.research.models import (
    check_backbone,
    create_backbone,
    list_backbones,
    reach_hub,
    weights_digest,
)

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def raw(side: int = 40, channels: int = 3, count: int = 2) -> Tensor:
    return torch.randint(0, 256, (count, channels, side, side), generator=torch.Generator().manual_seed(0))


def seeded(name: str, classes: int = 5, **options: Any) -> Any:
    torch.manual_seed(0)
    return create_backbone(name, classes, **options).eval()


def weight_file(path: Path, name: str, half: bool = True, **arguments: Any) -> dict[str, Tensor]:
    """Weights of 1,000 classes as they are shared: matrices in half precision, no counters."""
    torch.manual_seed(1)
    tensors = {
        key: tensor.half() if half and tensor.ndim > 1 else tensor
        for key, tensor in timm.create_model(name, **arguments).state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    save_file(tensors, path)
    return tensors


def test_mobilenet_from_a_file_is_timms_network_on_scaled_images(tmp_path: Path) -> None:
    file = tmp_path / "mobilenet_v1.safetensors"
    weights = weight_file(file, "mobilenetv1_100")
    model = seeded("mobilenet_v1", weights=file)
    plain = timm.create_model("mobilenetv1_100", num_classes=5, pad_type="same", bn_eps=1e-3).eval()
    head = {f"classifier.{n}": p for n, p in model.body.classifier.named_parameters()}
    plain.load_state_dict({**{n: t.float() for n, t in weights.items()}, **head}, strict=False)
    images = raw()
    torch.testing.assert_close(model(images), plain((images - 127.5) / 127.5))
    assert model(images).shape == (2, 5)


def test_efficientnet_from_a_file_has_imagenet_statistics_and_drops_paths(tmp_path: Path) -> None:
    file = tmp_path / "efficientnet_b0.safetensors"
    weight_file(file, "tf_efficientnet_b0")
    model = seeded("efficientnet_b0", weights=file)
    images = raw()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
    torch.testing.assert_close(model(images), model.body((images / 255 - mean) / std))
    rates = {m.drop_prob for m in model.modules() if type(m).__name__ == "DropPath"}
    assert max(rates) == pytest.approx(0.2 * 15 / 16)  # Keras: .2 times the block's place among 16


def test_the_paper_backbones_have_a_dense_layer_on_pooled_features() -> None:
    for name, features in (("efficientnet_b0", 1280), ("mobilenet_v1", 1024)):
        model = seeded(name, 7)
        assert (model.body.classifier.in_features, model.body.classifier.out_features) == (features, 7)
        assert model.body.forward_head(torch.randn(2, features, 3, 3), pre_logits=True).shape == (2, features)


@pytest.mark.parametrize("name", ["efficientnet_b0", "mobilenet_v1", "test_resnet"])
def test_the_new_layer_starts_as_a_dense_layer_of_keras(name: str) -> None:
    layer = seeded(name, 7).body.get_classifier().requires_grad_(False)
    limit = (6 / (layer.in_features + 7)) ** 0.5  # Glorot and Bengio, 2010
    assert 0.98 * limit < float(layer.weight.abs().max()) <= limit
    assert float(layer.weight.std()) == pytest.approx(limit / 3**0.5, rel=0.05)
    assert not layer.bias.any()


def test_any_name_of_timms_with_its_own_preprocessing() -> None:
    model = seeded("test_resnet")
    cfg = model.body.pretrained_cfg
    mean, std = (torch.tensor(cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    images = raw(64)
    torch.testing.assert_close(model(images), model.body((images / 255 - mean) / std))


def test_images_are_resized_inside_only_if_asked_and_without_aliasing() -> None:
    model, small = seeded("test_resnet"), seeded("test_resnet", input_size=48)
    torch.testing.assert_close(small(raw(48)), model(raw(48)))
    for side in (32, 96):
        same = torch.nn.functional.interpolate(raw(side).float(), (48, 48), mode="bilinear", antialias=True)
        torch.testing.assert_close(small(raw(side)), model(same))


def test_grey_images_are_shown_three_times() -> None:
    model, colour = seeded("test_resnet", in_channels=1), seeded("test_resnet")
    images = raw(48, channels=1)
    torch.testing.assert_close(model(images), colour(images.expand(-1, 3, -1, -1)))
    with pytest.raises(ModelError, match=r"\(N, 1, height, width\), got \(2, 3, 48, 48\)"):
        model(raw(48))
    with pytest.raises(ModelError, match="1 or 3 channels, got 4"):
        seeded("test_resnet", in_channels=4)


def test_the_seed_decides_the_new_layer_and_the_file_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    weights = weight_file(file, "mobilenetv1_100")
    first, again = seeded("mobilenet_v1", weights=file), seeded("mobilenet_v1", weights=file)
    for (name, one), two in zip(first.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
        plain = name.removeprefix("body.")
        if plain in weights and not plain.startswith("classifier"):
            assert torch.equal(one, weights[plain].to(one.dtype)), name
    empty = seeded("mobilenet_v1", weights=file, load=False)
    empty.load_state_dict(first.state_dict())
    assert torch.equal(empty(raw()), first(raw()))  # padded and normalised as the file's weights want it


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    with pytest.raises(StateError, match=r"w\.safetensors: expected a safetensors file"):
        seeded("mobilenet_v1", weights=file)
    file.write_bytes(b"not safetensors")
    with pytest.raises(StateError, match="expected a safetensors file"):
        seeded("mobilenet_v1", weights=file)
    weight_file(file, "tf_efficientnet_b0")
    with pytest.raises(StateError, match="missing"):
        seeded("mobilenet_v1", weights=file)
    weights = weight_file(file, "mobilenetv1_100")
    save_file({**weights, "extra.weight": torch.zeros(1)}, file)
    with pytest.raises(StateError, match=r"unknown \['extra\.weight'\]"):
        seeded("mobilenet_v1", weights=file)
    weights["conv_stem.weight"] = weights["conv_stem.weight"][:3].clone()
    save_file(weights, file)
    with pytest.raises(StateError, match=r"of another shape \['conv_stem"):
        seeded("mobilenet_v1", weights=file)


def test_names() -> None:
    assert list_backbones() == ["smallcnn", "efficientnet_b0", "mobilenet_v1"]
    for name in (*list_backbones(), "resnet50"):
        check_backbone(name)
    with pytest.raises(ModelError, match="no network 'resnet5000'"):
        check_backbone("resnet5000")
    with pytest.raises(ModelError, match="no network"):
        create_backbone("resnet5000", 3)
    for options in ({"input_size": 64}, {"weights": "hub"}):
        with pytest.raises(ModelError, match="smallcnn takes images of 32 pixels and has no ImageNet"):
            create_backbone("smallcnn", 10, **options)
    assert create_backbone("smallcnn", 4, in_channels=1)(raw(32, 1)).shape == (2, 4)


def test_the_digest_of_weights_is_of_their_content(tmp_path: Path) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    one.write_bytes(b"1")
    two.write_bytes(b"1")
    assert weights_digest(one, "x") == weights_digest(two, "x")
    two.write_bytes(b"2")
    assert len({weights_digest(w, "mobilenet_v1") for w in (one, two, "hub", None)}) == 4


def test_efficientnet_drops_paths_without_a_weight_file_too() -> None:
    rates = {m.drop_prob for m in seeded("efficientnet_b0").modules() if type(m).__name__ == "DropPath"}
    assert max(rates) == pytest.approx(0.2 * 15 / 16)


def test_the_hub_is_used_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []
    real = timm.create_model

    def noted(name: str, *, pretrained: bool, **options: Any) -> Any:
        asked.append((name, pretrained))
        return real(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", noted)
    monkeypatch.setattr(models, "reach_hub", lambda name: None)
    create_backbone("mobilenet_v1", 3, weights="hub")
    create_backbone("mobilenet_v1", 3, weights="hub", load=False)
    create_backbone("mobilenet_v1", 3)
    name = "mobilenetv1_100.ra4_e3600_r224_in1k"
    assert asked == [(name, True), (name, False), (name, False)]
    assert weights_digest("hub", "mobilenet_v1") == f"hub {name}"
    assert weights_digest("hub", "resnet18") == "hub resnet18"


@pytest.mark.parametrize("error", [OSError("no network"), RuntimeError("no weights")])
def test_a_hub_out_of_reach_is_an_error_with_a_remedy(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(timm, "create_model", fails)
    monkeypatch.setattr(models, "reach_hub", lambda name: None)
    with pytest.raises(
        ModelError, match=rf"from the hub \({error}\); .* DATA/weights/mobilenet_v1\.safetensors"
    ):
        create_backbone("mobilenet_v1", 3, weights="hub")
    with pytest.raises(type(error), match=str(error)):
        create_backbone("mobilenet_v1", 3)


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def out_of_reach(name: str, *, timeout: float) -> None:
        asked.append((name, timeout))
        raise ValueError("no route")

    monkeypatch.setattr("huggingface_hub.model_info", out_of_reach)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    with pytest.raises(ModelError, match=r"does not answer: no route\)"):
        create_backbone("mobilenet_v1", 3, weights="hub")
    assert asked == [("timm/mobilenetv1_100.ra4_e3600_r224_in1k", 3.0)]
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "here")
    reach_hub("resnet18")
    assert len(asked) == 1


def test_small_cnn_has_the_papers_parameters() -> None:
    model = eq.models.SmallCNN()
    counted = sum(p.numel() for p in model.parameters())
    statistics = {name: buffer for name, buffer in model.named_buffers() if "num_batches" not in name}
    assert all(name.endswith(("running_mean", "running_var")) for name in statistics)
    assert counted + sum(buffer.numel() for buffer in statistics.values()) == 319_498
    # Layer by layer: two convolutions with batch norm (4 numbers a channel), then three dense layers.
    assert counted + 192 == 832 + 128 + 51_264 + 256 + 262_208 + 4_160 + 650


def test_small_cnn_takes_raw_images_of_any_type() -> None:
    model = eq.models.SmallCNN(num_classes=7, in_channels=3).eval()
    raw = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert model(raw).shape == (2, 7)
    assert torch.equal(model(raw), model(raw.float()))
    source = eq.SourceStatistics.measure(model, [raw], progress=False)
    assert eq.Poise(model, source)(raw).shape == (2, 7)
    with pytest.raises(eq.errors.ModelError, match=r"expected images of shape \(N, 3, 32, 32\), got \(2, 1,"):
        model(raw[:, :1])
