import pytest
import torch

import equipoise as eq


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
