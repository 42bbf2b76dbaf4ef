"""Running a network: torch.compile, precision and memory format, and the logits in its output."""

import platform
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.functional import at_least_single
from equipoise.network.batch import Batch
from equipoise.options import one_of

COMPILED_AT = 2
"""The sighting of a shape at which it is compiled, which takes a minute: a ragged last batch never is."""


def original(model: nn.Module) -> nn.Module:
    """The module that torch.compile has wrapped; any other module itself.

    A compiled module ignores hooks that are placed after its first call, and prefixes the names of weights.
    """
    # An import of the class takes a second; without one there is no module of it.
    wrapper = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    return original(model.get_submodule("_orig_mod")) if isinstance(model, wrapper) else model


def uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    """Run a model in the block as if neither it nor a part of it were compiled."""
    compiled = any(m._compiled_call_impl is not None or original(m) is not m for m in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


class Compiler:
    """Runs a network on a batch, compiled for its shape if that was wanted and is possible.

    Attributes:
        wanted: whether to compile at all.
        refusal: why nothing is compiled any more; empty while there is no reason.
    """

    def __init__(self, wanted: bool) -> None:
        self.wanted, self.refusal = wanted, ""
        self._seen: Counter[Any] = Counter()
        self._compiled: dict[int, Any] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Compiler":
        """A copy of an adapter compiles its own networks."""
        return Compiler(self.wanted)

    def __reduce__(self) -> tuple[type["Compiler"], tuple[bool]]:
        """Compiled networks cannot be written down."""
        return Compiler, (self.wanted,)

    @property
    def description(self) -> str:
        """The outcome of compiling, in words."""
        if self.refusal:
            return f"not compiled: {self.refusal}"
        return "compiled" if self._compiled else "nothing compiled yet"

    def run(self, network: nn.Module, batch: Batch) -> Any:
        """The network's output."""
        if self.wanted and not self.refusal and self._often(network, batch):
            if id(network) not in self._compiled:
                self._compiled[id(network)] = torch.compile(network, dynamic=False)
            try:
                return self._compiled[id(network)](*batch.args, **batch.kwargs)
            except Exception as error:
                # Compilers fail in many ways. If the network itself failed, its error is raised again.
                output = network(*batch.args, **batch.kwargs)
                self.refusal = f"{type(error).__name__}: {error}".splitlines()[0]
                return output
        return network(*batch.args, **batch.kwargs)

    def _often(self, network: nn.Module, batch: Batch) -> bool:
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in batch.tensors())
        key = (id(network), torch.is_grad_enabled(), shapes)
        self._seen[key] += 1
        return self._seen[key] >= COMPILED_AT


Precision: TypeAlias = Literal["fp32", "bf16"]
MemoryFormat: TypeAlias = Literal["contiguous", "channels_last"]

_X86 = ("x86_64", "AMD64")
_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Layout:
    """Precision and memory format, as asked for.

    Attributes:
        precision: "bf16" runs convolutions and matrix products in bfloat16 where the device supports it (any
            recent GPU; a CPU with instructions for it, others would take ten times as long and stay with
            fp32). Weights, statistics, losses, temperatures and answers are float32 all the same.
        memory_format: of the weights of 2-d convolutions; None: by a rule for each kind of device, from
            measurements (docs/tables/performance-cpu.md), so that two runs have the same bits. Group norm
            learns on a CPU with contiguous tensors only.
        as_given: whether None leaves the weights in the format of the model that was passed.
    """

    precision: Precision = "fp32"
    memory_format: MemoryFormat | None = None
    as_given: bool = False

    @classmethod
    def checked(cls, precision: Any, memory_format: Any, *, as_given: bool) -> "Layout":
        """A layout of options as a user gives them; OptionError for unknown values."""
        one_of("precision", precision, get_args(Precision))
        names = {value: name for name, value in _FORMATS.items()}
        if isinstance(memory_format, torch.memory_format):
            memory_format = names.get(memory_format, memory_format)
        if memory_format is not None:
            one_of("memory_format", memory_format, _FORMATS)
        return cls(precision, memory_format, as_given)

    def plainer(self, model: nn.Module, device: torch.device, error: Exception) -> "Layout | None":
        """The contiguous layout after an error that channels_last may have caused; None for other errors.

        Some models flatten by `x.view(len(x), -1)`, which wants contiguous tensors.
        """
        picked = self.memory_format is None and self._format(model, device, ()) == "channels_last"
        return replace(self, memory_format="contiguous") if picked and "view size" in str(error) else None

    def casting(self, device: torch.device) -> AbstractContextManager[Any]:
        """The context of forwards: autocast to bfloat16 if asked for and supported by the device."""
        if self.precision == "bf16" and _has_bf16(device):
            return torch.autocast(device.type, torch.bfloat16)
        return nullcontext()

    def apply(self, model: nn.Module, device: torch.device, learned: Collection[Tensor] = ()) -> None:
        """Bring the 2-d convolution weights of a network, of whose parameters some learn, into the format."""
        chosen = self._format(model, device, learned)
        if chosen is None:
            return
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                weight = module.weight.data
                # `contiguous` would leave those with one input channel as they are, whose layout is either.
                laid_out = torch.empty_like(weight, memory_format=_FORMATS[chosen])
                if laid_out.stride() != weight.stride():
                    module.weight.data = laid_out.copy_(weight)

    def _format(
        self, model: nn.Module, device: torch.device, learned: Collection[Tensor]
    ) -> MemoryFormat | None:
        if learned and needs_contiguous(model, device):
            return "contiguous"
        if self.memory_format is not None or self.as_given:
            return self.memory_format
        if device.type != "cpu" or not learned or platform.machine() in _X86:
            return "channels_last"
        # On a CPU forwards take two thirds of the time with the channels last. On ARM backwards take twice
        # that of depthwise convolutions, and a third more where only the gradient of their input is wanted.
        convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
        chosen = {id(tensor) for tensor in learned}
        fast = all(module.groups == 1 and id(module.weight) in chosen for module in convolutions)
        return "channels_last" if fast else "contiguous"

    def describe(self, model: nn.Module, device: torch.device, learned: Collection[Tensor]) -> str:
        """Precision and layout in words."""
        laid_out = self._format(model, device, learned) if _has_images(model) else None
        words = [] if laid_out is None else [laid_out.replace("_", " ")]
        if self.precision == "bf16":
            words.append("bf16" if _has_bf16(device) else "fp32, as this device is slow in bf16")
        return ", ".join(words)


@contextmanager
def fresh_autocast_cache() -> Iterator[None]:
    """Under autocast, cast the weights again: its cache would answer with those of before the update."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


def convolution_strides(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The strides of the weights of 2-d convolutions, by the names of the parameters."""
    weights = {id(module.weight) for module in model.modules() if isinstance(module, nn.Conv2d)}
    return {name: each.stride() for name, each in model.named_parameters() if id(each) in weights}


def with_strides(tensors: Mapping[str, Tensor], strides: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Copies of the tensors that have other strides than those of their names, with these."""
    with torch.inference_mode(False), torch.no_grad():
        return {
            name: torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(
                tensor
            )
            for name, stride in strides.items()
            if (tensor := tensors[name]).stride() != stride
        }


def needs_contiguous(model: nn.Module, device: torch.device) -> bool:
    """Whether a backward with the channels last would crash the process.

    On a CPU torch's group norm does (2.10), if the gradient of its weights is wanted and not of its input.
    """
    return device.type == "cpu" and any(isinstance(module, nn.GroupNorm) for module in model.modules())


def _has_images(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


OutputsFunction: TypeAlias = Callable[[Any], Tensor]
"""Picks the (N, C) logits out of a model's output: `lambda out: out["logits"]`."""


def logits_of(output: Any, outputs: OutputsFunction | None = None) -> Tensor:
    """The logits in a model's output: by `outputs`, else a tensor itself, or the `.logits` of an object."""
    if outputs is not None:
        return _picked(output, outputs)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise ModelError(
            f"expected the model to return logits as a tensor or an object with .logits, "
            f"got {_described(output)}{_cure(output)}"
        )
    return logits


AnswerForm: TypeAlias = Callable[..., Any]
"""Makes an answer of `logits=`: these themselves, or an object that has them as `.logits`."""


def form_of(output: Any) -> AnswerForm:
    """The form of a model's output: a tensor, or an object with `.logits`.

    The object is of the output's class where that is a dataclass, as those of Hugging Face are, or a named
    tuple; all its other fields are None, as they were computed by other weights, or for other rows. Of any
    other class, and of one that cannot be made so, only `.logits` is known, and a SimpleNamespace has it.
    """
    if isinstance(output, Tensor):
        return logits_alone
    kind: Any = type(output)
    names = getattr(kind, "_fields", ()) if isinstance(output, tuple) else ()
    if is_dataclass(output):
        names = [each.name for each in fields(output) if each.init]
    form = partial(kind, **dict.fromkeys(names))
    return form if names and _makes(form, output.logits) else SimpleNamespace


def _makes(form: AnswerForm, logits: Tensor) -> bool:
    """Whether a form makes an object that has the logits as they are."""
    try:
        return form(logits=logits).logits is logits
    except Exception:  # of a class of the user's, whose __init__ or __post_init__ may want other fields
        return False


def logits_alone(logits: Tensor) -> Tensor:
    """The form of an answer that is a tensor."""
    return logits


def checked_logits(
    output: Any, rows: int, classes: int | None = None, outputs: OutputsFunction | None = None
) -> Tensor:
    """The (N, C) logits in a model's output, C ≥ 2 and equal to `classes` where that is known."""
    logits = logits_of(output, outputs)
    if logits.ndim != 2 or logits.shape[0] != rows or not logits.is_floating_point():
        raise ModelError(
            f"expected the model to return floating-point logits of shape (N, C) with N = {rows}, "
            f"got {logits.dtype} of shape {tuple(logits.shape)}"
        )
    if logits.shape[1] < 2:
        raise ModelError(
            "expected logits of at least 2 classes, got 1; a binary classifier with one output z is "
            "the two-class classifier with logits (0, z)"
        )
    if classes is not None and logits.shape[1] != classes:
        raise ModelError(f"expected {classes} classes as in the source statistics, got {logits.shape[1]}")
    return logits


def _picked(output: Any, outputs: OutputsFunction) -> Tensor:
    try:
        logits: Any = outputs(output)
    except (AttributeError, LookupError, TypeError) as error:
        raise ModelError(
            f"outputs= failed on {_described(output)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(logits, Tensor):
        raise ModelError(f"expected outputs= to return the logits as a tensor, got {_described(logits)}")
    return logits


def _described(output: Any) -> str:
    """The kind of an output, with the names of its entries or their number."""
    kind = type(output).__name__
    if isinstance(output, Mapping):
        return f"{kind} with {', '.join(str(name) for name in output) or 'no entries'}"
    return f"{kind} of {len(output)}" if isinstance(output, (tuple, list)) else kind


def _cure(output: Any) -> str:
    """The argument that picks the logits out of a dict or a tuple: the entry of that name, or the first."""
    entries = output if isinstance(output, Mapping) else {}
    if isinstance(output, (tuple, list)):
        entries = dict(enumerate(output))
    tables = [name for name, value in entries.items() if isinstance(value, Tensor) and value.ndim == 2]
    if not tables:
        return ""
    entry = "logits" if "logits" in tables else tables[0]
    return f": say where the logits are, with outputs=lambda out: out[{entry!r}] for example"


def are_probabilities(logits: Tensor) -> bool:
    """Whether every row has no negative value and sums to one, as behind a softmax."""
    wide = at_least_single(logits)
    rounding = {torch.bfloat16: 1e-2, torch.float16: 1e-3}.get(logits.dtype, 1e-4)
    return bool((wide >= 0).all() and ((wide.sum(1) - 1).abs() < rounding).all())


PROBABILITIES = (
    "expected a model that returns logits, got rows of probabilities that sum to one: leave the softmax at "
    "its end out, or pass outputs=lambda p: p.clamp(min=1e-12).log() wherever the model goes, which makes "
    "logits of them"
)
"""The refusal of a model that ends in a softmax, with the cures."""


def check_no_probabilities(logits: Tensor) -> bool:
    """Raise ModelError where every row of a batch with finite logits is one of probabilities.

    Returns whether there was a finite row to tell it by.
    """
    found = logits.detach()
    finite = found[found.isfinite().all(1)]
    if len(finite) and are_probabilities(finite):
        raise ModelError(PROBABILITIES)
    return len(finite) > 0
