"""Everything that adaptation changes, in tensors at fixed addresses, and the transaction that changes it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from equipoise.calibration.source_statistics import SourceStatistics
from equipoise.core.checkpoint import check_state
from equipoise.core.method import SAMPLES, Memory, Method
from equipoise.core.student import Student
from equipoise.errors import StateError
from equipoise.network.named_tensors import copies, copy_into, copy_unless, part, prefixed


class HostRandom:
    """Uniform random numbers from a CPU generator.

    Attributes:
        seed: of the generator.
        state: the generator's state; None before the first draw.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.state: Tensor | None = None

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Numbers in [0, 1), on the CPU."""
        generator = torch.Generator()
        if self.state is None:
            generator.manual_seed(self.seed)
        else:
            generator.set_state(self.state)
        drawn = torch.rand(shape, generator=generator)
        self.state = generator.get_state()
        return drawn


def check_generator_state(state: Tensor) -> None:
    """Raise StateError if a tensor is not the state of a CPU generator."""
    try:
        torch.Generator().set_state(state.cpu())
    except (RuntimeError, TypeError) as error:
        raise StateError(f"the random state is damaged: {error}") from error


_MODEL, _MEMORY, _TEMPERATURE, _COUNTS, _RANDOM = "model.", "memory.", "temperature.", "counts.", "random"


class NewMemoryError(RuntimeError):
    """A step brought memory of another name or shape, which a CUDA graph cannot write."""


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything that adaptation changes, in memory and on the adapter's device.

    `Adapter.snapshot` makes one and `Adapter.restore` takes it over, without the checks and names that
    `state_dict` has: for going back, and for one adapter that serves several streams in turn. A snapshot fits
    the adapter that made it, for as long as that stays on its device.

    Attributes:
        model: weights and running statistics that adapt, by name.
        memory: the method's memory.
        temperature: the observations of the temper.
        counts: the integers that the host counts.
        random: the generator's state.
    """

    model: Memory
    memory: Memory
    temperature: Memory
    counts: Mapping[str, int]
    random: Tensor | None

    @property
    def bytes(self) -> int:
        """The memory that the tensors take."""
        held = (*self.model.values(), *self.memory.values(), *self.temperature.values())
        return sum(tensor.nbytes for tensor in held)

    def named(self) -> dict[str, Tensor]:
        """The tensors by the names that they have in a state dict."""
        return {
            **prefixed(_MODEL, self.model),
            **prefixed(_MEMORY, self.memory),
            **prefixed(_TEMPERATURE, {name: tensor.cpu() for name, tensor in self.temperature.items()}),
            **prefixed(_COUNTS, {name: torch.tensor(count) for name, count in self.counts.items()}),
            **({} if self.random is None else {_RANDOM: self.random.clone()}),
        }

    @classmethod
    def from_named(cls, named: Mapping[str, Tensor]) -> "Snapshot":
        """The snapshot that `named` gave, with the same tensors."""
        counts = {name: int(count) for name, count in part(named, _COUNTS).items()}
        model, memory, temperature = (part(named, prefix) for prefix in (_MODEL, _MEMORY, _TEMPERATURE))
        return cls(model, memory, temperature, counts, named.get(_RANDOM))


class State:
    """The state of an adapter: undo, reset, saving, moving and captured steps need no more than this.

    Attributes:
        student: the network, whose weights and running statistics adapt.
        memory: the method's memory.
        counts: the integers that the host counts.
        random: the generator of the method's random numbers.
        temperature: the observations of the temper.
    """

    def __init__(
        self, student: Student, method: Method, source: SourceStatistics | None, temperature: Memory
    ) -> None:
        self.student, self._method, self._source = student, method, source
        self.memory: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.random = HostRandom(method.random_seed)
        self.temperature: dict[str, Tensor] = {}
        # The tensors at fixed addresses; also those that a reset has cleared and a batch will bring again.
        self._homes: dict[str, Tensor] = {}
        self._no_observations = dict(temperature)
        self._start()

    def _start(self) -> None:
        self._start_memory()
        self.random.state = None
        self.forget_temperature()

    def _start_memory(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self._replace({n: t.clone() for n, t in self._method.initial(self.student, self._source).items()})
        self.counts.update(dict.fromkeys(self._method.counters, 0))

    def forget_temperature(self) -> None:
        """Forget the observations of the temper."""
        self._observe(self._no_observations)

    def observe(self, temperature: Memory) -> None:
        """Take over observations of the temper that were made outside of a step."""
        self._observe(temperature)

    def beside(self, temperature: Memory) -> "State":
        """A state that shares weights and memory with this one, with the observations of another temper."""
        other = copy(self)
        other.temperature, other._no_observations = {}, dict(temperature)
        other.forget_temperature()
        return other

    def cleared(self) -> list[Tensor]:
        """The tensors that only keep their addresses, for CUDA graphs: zeros."""
        return [tensor for name, tensor in self._homes.items() if name not in self.memory]

    @property
    def _device(self) -> torch.device:
        """The device of the observations: Apple's GPUs have no double precision."""
        device = self.student.device
        return torch.device("cpu") if device.type == "mps" else device

    # ------------------------------------------------------------------ change

    @contextmanager
    def transaction(self) -> Iterator["Transaction"]:
        """Let a step write weights and statistics in the block: `commit` decides, an error undoes."""
        transaction = Transaction(self, copies(self.student.adapting), self.random.state)
        try:
            yield transaction
        except BaseException:
            transaction.undo()
            raise

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo at the end of the block everything that was done in it."""
        before = self.snapshot()
        try:
            yield
        finally:
            self.restore(before)

    def snapshot(self) -> Snapshot:
        """A copy of everything."""
        return Snapshot(
            copies(self.student.adapting),
            copies(self.memory),
            copies(self.temperature),
            dict(self.counts),
            self.random.state,
        )

    def restore(self, snapshot: Snapshot, *, keep_temperature: bool = False) -> None:
        """Take over a copy of everything, or of everything but the observations of the temper."""
        with torch.inference_mode(False), torch.no_grad():
            copy_into(self.student.adapting, snapshot.model)
            self._replace(copies(snapshot.memory))
        self.counts.update(snapshot.counts)
        self.random.state = snapshot.random
        if not keep_temperature:
            self._observe(snapshot.temperature)

    def staged(self, memory: Memory) -> Memory:
        """New memory, ready to be written: everything that may fail, such as a copy, is done here.

        An entry that gets a new address, or refers to a tensor of the state, is a copy: the one may be a view
        of the caller's batch, and the other would change while the state is written.
        """
        arrives = self._method.arrives
        for name in (name for name in memory if name not in self.memory):
            if not any(fnmatchcase(name, pattern) for pattern in arrives):
                raise RuntimeError(
                    f"{self._method.name}: Update.memory has {name!r}, which is neither in `initial` nor in "
                    f"`arrives`, {', '.join(arrives)}"
                )
        held = {tensor.untyped_storage().data_ptr() for tensor in self._homes.values()}
        news = {name: new.detach() for name, new in memory.items() if new is not self.memory.get(name)}
        return {
            name: new.clone()
            if new.untyped_storage().data_ptr() in held or not self._fits(name, new)
            else new
            for name, new in news.items()
        }

    def _fits(self, name: str, value: Tensor) -> bool:
        return name in self._homes and _kind(self._homes[name]) == _kind(value)

    def write(self, memory: Memory, temperature: Memory, keep: Tensor | None) -> None:
        """Take over staged memory and observations where a flag on the device is true; None: in any case."""
        with torch.no_grad():
            if keep is None:
                self._remember(memory)
                self._observe(temperature)
                return
            kinds = {name: _kind(tensor) for name, tensor in self.memory.items()}
            if any(kinds.get(name) != _kind(new) for name, new in memory.items()):
                raise NewMemoryError("a step brought memory of a new name or shape")
            copy_unless(~keep, self.memory, memory)
            copy_unless(~keep, self.temperature, temperature)

    def _remember(self, memory: Memory) -> None:
        """Copy staged memory to the fixed addresses of its names, or take over its own for a new kind."""
        copy_into(self._homes, {name: value for name, value in memory.items() if self._fits(name, value)})
        self._homes.update({name: value for name, value in memory.items() if not self._fits(name, value)})
        self.memory.update({name: self._homes[name] for name in memory})

    def _replace(self, memory: Memory) -> None:
        """Take over memory in place of all that there is; of the old values nothing is left."""
        self.memory.clear()
        self._remember(memory)
        for tensor in self.cleared():
            tensor.zero_()

    def _observe(self, temperature: Memory) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for name, value in temperature.items():
                home = self.temperature.get(name)
                if home is None or home.device != self._device:
                    self.temperature[name] = value.to(self._device, copy=True)
                elif home is not value:
                    home.copy_(value)

    def reset(self) -> None:
        """Go back to the source model and to the state before the first batch."""
        self._load_model(self.student.source_values(self.student.adapting))
        self._start()

    def reset_network(self) -> None:
        """Go back to the source model, and to memory and counts before the first batch.

        Random numbers and the observations of the temper go on.
        """
        self._load_model(self.student.source_values(self.student.adapting))
        self._start_memory()

    def move(self, fn: Any) -> None:
        """Move with the module, by the function of `nn.Module._apply`.

        Samples keep their type, and nothing gets half precision.
        """
        with torch.inference_mode(False), torch.no_grad():
            moved = {name: _moved(name, tensor, fn).clone() for name, tensor in self.memory.items()}
            self._homes.clear()
            self._replace(moved)
        self.move_temperature()

    def move_temperature(self) -> None:
        """Move the observations to the device of the network."""
        self._observe(dict(self.temperature))

    # ------------------------------------------------------------------ files

    def load(self, named: Mapping[str, Any]) -> None:
        """Take over a snapshot by its names; StateError, before anything changes, if it does not fit."""
        root = f"{self._method.name}."  # errors have the names that are in the caller's dict
        with torch.inference_mode(False):
            first = self._method.initial(self.student, self._source)
        expected = replace(self.snapshot(), memory=first, random=None).named()
        optional = (_RANDOM, *(_MEMORY + name for name in self._method.arrives))
        check_state(prefixed(root, expected), prefixed(root, named), tuple(root + o for o in optional))
        came = Snapshot.from_named(named)
        for name, count in came.counts.items():
            if count < 0:
                raise StateError(f"counts.{name}: expected a number >= 0, got {count}")
        self._method.check_memory(self.student, came.memory, came.counts)
        if came.random is not None:
            check_generator_state(came.random)
        with torch.inference_mode(False), torch.no_grad():
            moved = {name: t.detach().to(self.student.device, copy=True) for name, t in came.memory.items()}
            self._load_model(came.model)
            self._replace(moved)
        self._observe(came.temperature)
        self.counts.update(came.counts)
        self.random.state = None if came.random is None else came.random.cpu().clone()

    def _load_model(self, values: Mapping[str, Tensor]) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for name, value in values.items():
                self.student.adapting[name].copy_(value)


class Transaction:
    """A transaction that is not decided yet."""

    def __init__(self, state: State, before: Memory, random: Tensor | None) -> None:
        self._state, self._before, self._random = state, before, random
        self._whole: Snapshot | None = None

    def reset_network(self) -> None:
        """Let the step begin from the source model and the memory before the first batch."""
        self._whole = self._state.snapshot()
        self._state.reset_network()

    def undo(self) -> None:
        """Give the network its values of before; memory too, if the step began again."""
        if self._whole is not None:
            self._state.restore(self._whole)
        self._state.random.state = self._random
        copy_into(self._state.student.adapting, self._before)

    def commit(
        self,
        keep: Tensor,
        memory: Memory,
        temperature: Memory,
        counts: Mapping[str, int],
        *,
        host_looks: bool,
    ) -> None:
        """Keep everything where the flag is true, nothing where it is not.

        A host that may read the flag decides itself; else masks on the device do, and the host's counts
        advance even if the batch is undone.
        """
        if not host_looks:
            copy_unless(keep, self._state.student.adapting, self._before)
            self._state.write(memory, temperature, keep)
        elif bool(keep):
            self._state.write(memory, temperature, None)
        else:
            self.undo()
            return
        self._state.counts.update(counts)


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def _moved(name: str, tensor: Tensor, fn: Any) -> Tensor:
    moved: Tensor = fn(tensor)
    narrowed = moved.dtype in (torch.float16, torch.bfloat16)
    return tensor.to(moved.device) if narrowed or name.startswith(SAMPLES) else moved


def check_snapshot(snapshot: Any, adapting: Memory) -> None:
    """Raise StateError unless a snapshot has the tensors of a network that adapts, on the same device."""
    if not isinstance(snapshot, Snapshot):
        raise StateError(f"expected a snapshot of this adapter, got {type(snapshot).__name__}")
    kinds = ({name: _kind(tensor) for name, tensor in each.items()} for each in (snapshot.model, adapting))
    if next(kinds) != next(kinds):
        raise StateError(
            "the snapshot is of another adapter, or of this one on another device; state_dict and "
            "load_state_dict go from one to the other"
        )
