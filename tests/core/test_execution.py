"""Options of how an adapter runs, and the choices made: none of them changes a decision."""

import platform
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.record import Record, Step
from equipoise.errors import OptionError
from tests.support.models import Counting, drifted, make

DEPTHWISE = nn.Sequential(
    nn.Conv2d(3, 4, 3),
    nn.Conv2d(4, 4, 3, groups=4),
    nn.BatchNorm2d(4),
    nn.Flatten(),
    nn.Linear(16, 5),
).eval()


@pytest.mark.parametrize(
    "options", [{"engine": "fast"}, {"precision": "fp8"}, {"memory_format": "sideways"}, {"engine": None}]
)
def test_unknown_engines_and_layouts_are_refused(options: dict[str, Any]) -> None:
    model, source = make()
    with pytest.raises(OptionError, match=f"expected {next(iter(options))}"):
        eq.create("tent", model, source, **options)


def test_a_cuda_graph_needs_a_gpu() -> None:
    model, source = make()
    with pytest.raises(OptionError, match='engine="graph" is a CUDA graph and the model is on cpu'):
        eq.create("tent", model, source, engine="graph")


def on_processor(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: name)


@pytest.mark.parametrize("processor", ["aarch64", "x86_64"])
@pytest.mark.parametrize("name", eq.list_methods())
def test_execution_describes_the_choice_for_every_method(
    name: str, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_processor(monkeypatch, processor)
    model, source = make()
    adapter = eq.create(name, model, source)
    # Without depthwise convolutions, backwards through all weights are fast with the channels last, too.
    convolutions = any(parameter.ndim == 4 for parameter in adapter.learned.values())
    slow = processor == "aarch64" and adapter.learned and not convolutions
    assert adapter.execution == f"eager, {'contiguous' if slow else 'channels last'}"
    assert eq.create(name, model, source, engine="eager").execution == "eager"


def layout(model: nn.Module) -> list[tuple[int, ...]]:
    return [module.weight.stride() for module in model.modules() if isinstance(module, nn.Conv2d)]


def test_teacher_and_student_have_the_memory_format_that_is_fast_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_processor(monkeypatch, "aarch64")
    contiguous, channels_last = [(27, 9, 3, 1), (9, 9, 3, 1)], [(27, 1, 9, 3), (9, 1, 3, 1)]
    source = eq.SourceStatistics(h0=0.5, kappa=2.0, num_classes=5)
    learning = eq.create("dec", DEPTHWISE, source)
    assert layout(learning.student) == contiguous  # backwards are slow with the channels last on ARM
    assert layout(learning.source_copy) == channels_last
    assert layout(eq.create("poise", DEPTHWISE, source).student) == channels_last
    every = eq.create("dec", make()[0], make()[1])  # not depthwise, and all of it learns
    assert every.execution == "eager, channels last"
    for wanted, expected in (("channels_last", channels_last), (torch.contiguous_format, contiguous)):
        adapter = eq.create("dec", DEPTHWISE, source, memory_format=wanted)
        assert layout(adapter.student) == layout(adapter.source_copy) == expected
    assert layout(DEPTHWISE) == contiguous  # the model that was passed stays as it was
    on_processor(monkeypatch, "AMD64")
    assert layout(eq.create("dec", DEPTHWISE, source).student) == channels_last
    grouped = eq.create("tent", make("group_norm")[0])
    assert grouped.execution == "eager, contiguous"  # a backward with the channels last would crash


@pytest.mark.parametrize("name", eq.list_methods())
def test_layouts_change_no_decision(name: str) -> None:
    model, source = make()
    plain, other = (
        eq.create(name, model, source, memory_format=layout) for layout in ("contiguous", "channels_last")
    )
    for seed in range(3):
        x = drifted(8, seed)
        assert torch.allclose(plain(x), other(x.contiguous(memory_format=torch.channels_last)), atol=1e-4)
        assert plain.last is not None
        assert other.last is not None
        assert plain.last.used == other.last.used


class Flattening(nn.Module):
    """Flattens by a view, as many models do; not with the channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = self.norm(self.convolution(x))
        logits: Tensor = self.head(features.view(len(x), -1))
        return logits


@pytest.mark.parametrize("name", [*eq.list_methods(), "predict"])
def test_a_model_that_wants_contiguous_tensors_gets_them(name: str) -> None:
    model = Flattening().eval()
    source = eq.SourceStatistics.measure(model, [drifted(8)], fisher=True, features=True, progress=False)
    method = "source" if name == "predict" else name
    adapter = eq.create(method, model, source, tempering="mean", source_copy="resident")
    plain = eq.create(method, model, source, tempering="mean", source_copy="resident", engine="eager")
    for seed in range(3):
        x = drifted(8, seed)
        if name == "predict":
            assert torch.equal(adapter.predict(x), plain.predict(x))
        else:
            assert torch.equal(adapter(x), plain(x))
    # Such a model lies contiguous, and so does `predict`.
    assert adapter.execution == ("eager, channels last" if name == "predict" else "eager, contiguous")


class Caching(nn.Module):
    """Makes a table at its first forward, as rotary embeddings do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = 1 + 0.1 * torch.rand(x.shape[1:], generator=torch.Generator().manual_seed(0))
        logits: Tensor = self.inner(x * self.table)
        return logits


@pytest.mark.parametrize("source_copy", ["resident", "swapped"])
@pytest.mark.parametrize("name", ["tent", "dec"])
def test_a_model_may_keep_tensors_that_it_made_in_a_forward(name: str, source_copy: str) -> None:
    inner, source = make()
    source = eq.SourceStatistics(source.h0, source.kappa, 5)
    adapter = eq.create(
        name, Caching(inner), source, tempering="mean", source_copy=source_copy, parameters="all"
    )
    for seed in range(2):
        assert bool(adapter(drifted(8, seed)).isfinite().all())


def test_group_norm_learns_in_any_layout() -> None:
    # torch 2.10 on a CPU: its backward with the channels last ends the process.
    model, source = make("group_norm")
    plain = eq.create("tent", model, source)
    adapter = eq.create("tent", model, source, memory_format="channels_last")
    for seed in range(5):
        x = drifted(8, seed)
        came = adapter(x.contiguous(memory_format=torch.channels_last))
        assert torch.allclose(came, plain(x), atol=1e-5)


def test_bfloat16_where_the_cpu_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = make()
    for supported, told in ((True, "bf16"), (False, "fp32, as this device is slow in bf16")):
        monkeypatch.setattr("equipoise.network.forward._has_bf16", lambda _device, there=supported: there)
        for name in eq.list_methods():
            wide, narrow = (eq.create(name, model, source, precision=p) for p in ("fp32", "bf16"))
            assert narrow.execution.endswith(told)
            for seed in range(4):
                x = drifted(8, seed)
                assert narrow.predict(x).dtype == torch.float32
                p, q = wide(x).softmax(1), narrow(x).softmax(1)
                assert q.dtype == torch.float32
                assert float((p - q).abs().max()) < (0.03 if supported else 1e-6), name
            assert all(t.dtype != torch.bfloat16 for t in narrow.state_dict().values())


def test_engine_and_processes_are_of_a_machine_and_not_of_the_state(tmp_path: Path) -> None:
    model, source = make()
    adapter = eq.create(
        "tent", model, source, engine="eager", precision="bf16", memory_format="channels_last"
    )
    adapter(drifted(8))
    adapter.save(tmp_path / "state.safetensors")
    loaded = eq.load(tmp_path / "state.safetensors", model, source)
    assert loaded.options["engine"] == "auto"
    assert eq.load(tmp_path / "state.safetensors", model, engine="eager").options["engine"] == "eager"
    assert loaded.options["precision"] == "bf16"
    assert loaded.options["memory_format"] == "channels_last"


def test_the_record_is_made_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = make()
    adapter = eq.create("dec", model, source)
    reads, original = [], Record.read

    def counted(record: Record) -> Step:
        reads.append(1)
        return original(record)

    monkeypatch.setattr(Record, "read", counted)
    answer = adapter(drifted(8))
    expected = adapter.predict(drifted(8)).shape
    answer.zero_()  # the caller's, to do with as it likes
    assert not reads
    first = adapter.last
    assert first is adapter.last
    assert len(reads) == 1
    assert first is not None
    assert first.entropy is not None
    assert first.entropy < 2.32  # log2(5) would be that of zeros
    assert expected == (8, 5)


@pytest.mark.parametrize(
    ("name", "forwards"), [("source", 1), ("norm", 1), ("tent", 1), ("eta", 1), ("dec", 2), ("poise", 1)]
)
def test_no_second_forward_for_predictions(name: str, forwards: int) -> None:
    model, source = make()
    adapter = eq.create(name, Counting(model), eq.SourceStatistics(source.h0, source.kappa, 5))
    adapter(drifted(8))
    Counting.forwards = 0
    adapter(drifted(8, 1))
    assert Counting.forwards == forwards


def test_gradients_are_taken_only_where_parameters_adapt() -> None:
    model, source = make()
    adapter = eq.create("tent", model, source)
    adapter(drifted(8))
    taking = {name for name, p in adapter.student.named_parameters() if p.requires_grad}
    assert taking == set(adapter.learned) == {"1.weight", "1.bias", "6.weight", "6.bias"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler on a CPU")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tent", {}),
        ("norm", {}),
        ("poise", {}),
        ("dec", {}),
        ("dec", {"source_copy": "swapped"}),
        ("sotta", {"confidence": 0.0, "every": 8, "capacity": 8}),
        ("t3a", {}),
    ],
)
def test_compiled_networks_answer_as_plain_ones(name: str, options: dict[str, Any]) -> None:
    model, source = make()
    plain = eq.create(name, model, source, memory_format="contiguous", **options)
    compiled = eq.create(name, model, source, memory_format="contiguous", engine="compile", **options)
    for seed, rows in enumerate((8, 8, 8, 3, 8)):
        x = drifted(rows, seed)
        assert torch.allclose(plain(x), compiled(x), atol=1e-4)
    expected = "nothing compiled yet" if name in ("t3a", "poise") else "compiled"
    assert compiled.execution == f"eager, {expected}, contiguous"


def test_networks_that_cannot_be_compiled_run_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda *_args, **_kwargs: broken)
    model, source = make()
    plain, other = (
        eq.create("tent", model, source, engine=engine, memory_format="contiguous")
        for engine in ("auto", "compile")
    )
    for seed in range(3):
        assert torch.equal(plain(drifted(8, seed)), other(drifted(8, seed)))
    assert other.execution == "eager, not compiled: RuntimeError: no compiler here, contiguous"
