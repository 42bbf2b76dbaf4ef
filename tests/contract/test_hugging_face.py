"""A classifier of Hugging Face's transformers, with the dicts that its loaders yield."""

from pathlib import Path

import torch
from torch import Tensor

import equipoise as eq


def classifier() -> torch.nn.Module:
    # Here, as the import takes seconds, which only the process that runs this test should spend.
    from transformers import ViTConfig, ViTForImageClassification

    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=16,
            patch_size=8,
            id2label=dict(enumerate("abcd")),
        )
        model: torch.nn.Module = ViTForImageClassification(config)
    return model.eval()


def batches() -> list[dict[str, Tensor]]:
    images = torch.rand(100, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(100) % 4
    pairs = zip(images.split(50), labels.split(50), strict=True)
    return [{"pixel_values": x, "labels": y} for x, y in pairs]


def test_one_loader_of_dicts_serves_everything(tmp_path: Path) -> None:
    model, loader = classifier(), batches()
    source = eq.rehearse(model, loader, shifts=8, samples=100, check_held_out=False, progress=False)
    assert eq.SourceStatistics.measure(model, loader, progress=False).agrees_with(source)
    adapter, like = eq.Poise(model, source), eq.Poise(model, source)
    for batch in loader:
        expected = like(pixel_values=batch["pixel_values"])
        assert torch.equal(adapter(batch).logits, expected.logits)
        assert torch.equal(adapter.predict(batch).logits, like.predict(batch["pixel_values"]).logits)
    assert adapter.accuracy is not None
    assert "on the linear head 'classifier', 16 features to 4 classes" in adapter.describe()
    adapter.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", model)
    again, expected = (each.adapt(loader, progress=False)(loader[0]) for each in (loaded, like))
    assert torch.equal(again.logits, expected.logits)


def test_answers_are_of_the_class_of_the_model_s_own() -> None:
    model, loader = classifier(), batches()
    adapter = eq.create("tent", model)
    for answers in (adapter, adapter.predict, eq.Monitor(eq.Guarded(adapter)), adapter.detach()):
        found, own = answers(**loader[0]), model(**loader[0])
        assert type(found) is type(own)
        assert found.logits is found["logits"] is found[0]
        assert found.loss is None
        assert list(found) == ["logits"]
    assert not torch.equal(adapter(**loader[0]).logits, model(**loader[0]).logits)
    exported = torch.export.export(adapter.detach(), (), {"pixel_values": loader[0]["pixel_values"]})
    found = exported.module()(pixel_values=loader[0]["pixel_values"])
    assert torch.allclose(found.logits, adapter.predict(loader[0]).logits, atol=1e-6)
