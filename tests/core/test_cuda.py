"""Adapters on a GPU: the same answers as on the CPU, and weights that are kept in the host's memory."""

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import equipoise as eq
from tests.support.cases import POSSIBLE, create
from tests.support.models import drifted, make, same, snapshot

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize(("case", "kind"), POSSIBLE)
def test_answers_as_on_the_cpu(case: str, kind: str, tmp_path: Path) -> None:
    model, source = make(kind)
    on_cpu = create(case, model, source)
    on_gpu = create(case, copy.deepcopy(model).cuda(), source)
    for seed in range(3):
        x = drifted(8, seed)
        assert torch.allclose(on_gpu(x.cuda()).cpu(), on_cpu(x), atol=5e-3)
    for rows in (1, 1, 3) if case != "dec, lively" else ():  # Adam makes large steps of rounding errors there
        x = drifted(rows, seed=9)
        assert torch.allclose(on_gpu(x.cuda()).cpu(), on_cpu(x), atol=5e-2)
    on_gpu.adapt([drifted(8, 4)], progress=False)  # moved to the adapter's device
    on_gpu.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", copy.deepcopy(model).cuda(), on_gpu.source)
    assert same(snapshot(on_gpu), snapshot(loaded))
    assert torch.equal(on_gpu(drifted(8, 5).cuda()), loaded(drifted(8, 5).cuda()))
    moved = copy.deepcopy(on_gpu).cpu()
    assert torch.allclose(moved(drifted(8, 6)), on_gpu(drifted(8, 6).cuda()).cpu(), atol=1e-3)
    on_gpu.reset()
    assert all(
        torch.equal(p.cpu(), q) for p, q in zip(on_gpu.student.parameters(), model.parameters(), strict=True)
    )


def test_predict_is_the_model_before_the_first_batch_and_after_a_reset() -> None:
    model, source = make()
    model = model.cuda()
    adapter, x = eq.create("poise", model, source, tempering="none"), drifted(8).cuda()
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(adapter.predict(x), expected)
    for seed in range(3):
        adapter(drifted(8, seed).cuda())
    assert not torch.equal(adapter.predict(x), expected)
    adapter.reset()
    assert torch.equal(adapter.predict(x), expected)


@pytest.mark.parametrize("source_copy", ["resident", "swapped"])
def test_moves_to_the_gpu_and_back(source_copy: str) -> None:
    model, source = make()
    adapter, stays = (eq.create("poise", model, source, source_copy=source_copy) for _ in range(2))
    adapter.cuda()
    assert torch.allclose(adapter(drifted(8).cuda()).cpu(), stays(drifted(8)), atol=1e-4)
    adapter.cpu()
    assert torch.allclose(adapter(drifted(8, 1)), stays(drifted(8, 1)), atol=1e-4)
    adapter.reset()
    assert all(
        torch.equal(p, q) for p, q in zip(adapter.student.parameters(), model.parameters(), strict=True)
    )


def test_swapped_weights_are_kept_on_the_host() -> None:
    wide = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(108, 4096), torch.nn.Linear(4096, 4096), torch.nn.Linear(4096, 5)
    )
    wide.cuda()
    source = eq.SourceStatistics(h0=0.5, kappa=2.0, num_classes=5)
    held = {}
    for kept in ("resident", "swapped"):
        before = torch.cuda.memory_allocated()
        adapter = eq.create("dec", wide, source, source_copy=kept)
        adapter(drifted(8).cuda())
        held[kept] = torch.cuda.memory_allocated() - before
        del adapter
    weights = sum(p.numel() * p.element_size() for p in wide.parameters())
    assert held["resident"] > 1.9 * weights
    assert held["swapped"] < 1.2 * weights


def test_autocast_on_the_gpu() -> None:
    model, source = make()
    adapter = eq.Poise(model.cuda(), source)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for seed in range(3):
            assert bool(adapter(drifted(8, seed).cuda()).isfinite().all())


def test_integer_images_on_the_gpu() -> None:
    model = eq.models.SmallCNN().cuda().eval()
    raw = torch.randint(0, 256, (8, 1, 32, 32), dtype=torch.uint8, device="cuda")
    source = eq.SourceStatistics.measure(model, [raw], progress=False)
    adapter = eq.Poise(model, source)
    assert bool(adapter(raw).isfinite().all())
    bad = raw.float()
    bad[3] = torch.nan
    assert adapter(bad).isnan().any(1).nonzero().flatten().tolist() == [3]


class OfADict(torch.nn.Module):
    """Takes a dict, and returns one."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"scores": self.inner(batch["image"] + batch["offset"])}


@pytest.mark.parametrize("name", ["poise", "tent"])
def test_a_graph_takes_dicts(name: str) -> None:
    source = eq.SourceStatistics(h0=0.5, kappa=2.0, num_classes=5)
    adapters = [
        eq.create(
            name,
            OfADict(make()[0]).cuda(),
            source,
            engine=engine,
            memory_format="contiguous",
            inputs=lambda batch: (batch,),
            outputs=lambda out: out["scores"],
        )
        for engine in ("eager", "graph")
    ]
    for seed in range(4):
        x = drifted(8, seed).cuda()
        eager, graph = (adapter({"image": x, "offset": 0 * x + seed}) for adapter in adapters)
        assert torch.allclose(eager, graph, atol=1e-4)
    assert adapters[1].execution.startswith("CUDA graphs (batches of 8)")


def test_a_parent_with_an_adapter_is_restored_on_a_gpu() -> None:
    model, source = make()
    old, new = (torch.nn.ModuleDict({"adapter": eq.Poise(model, source)}).cuda() for _ in range(2))
    for seed in range(4):
        old["adapter"](drifted(8, seed).cuda())
        new["adapter"](drifted(8, 9 - seed).cuda())
    state = {name: tensor.cpu() for name, tensor in old.state_dict().items()}
    new.load_state_dict(state)
    x = drifted(8, 5).cuda()
    assert torch.equal(new["adapter"](x), old["adapter"](x))


@pytest.mark.parametrize("name", ["poise", "dec"])
def test_threads_share_an_adapter_on_a_gpu(name: str) -> None:
    model, source = make()
    adapter, serial = (eq.create(name, copy.deepcopy(model).cuda(), source) for _ in range(2))
    x = drifted(8, 99).cuda()
    stream = [drifted(8, seed).cuda() for seed in range(12)]
    possible = [serial.predict(x)]
    for batch in stream:
        serial(batch)
        possible.append(serial.predict(x))
    with ThreadPoolExecutor(2) as pool:
        learning = pool.submit(lambda: [adapter(batch) for batch in stream])
        answers = [adapter.predict(x) for _ in range(40)]
        learning.result()
    for answer in answers:
        assert any(torch.allclose(answer, expected, atol=1e-5) for expected in possible)
