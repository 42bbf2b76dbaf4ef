"""Processes that adapt as one: their exchanges, and the error when one is lost."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from equipoise.errors import RankError
from equipoise.functional import at_least_single

if TYPE_CHECKING:  # a torch built without distributed has none of these
    from torch._C._distributed_c10d import ProcessGroup, Work

PATIENCE = timedelta(minutes=5)
"""The longest wait of a rank for the others; less where the process group's own timeout is shorter."""

# Every exchange starts with a frame of one size: a description of the contents, and small contents.
# Gloo ends the whole process when two ranks send different lengths, so lengths that may differ are only sent
# after the words were compared; and an error reaches the others at their next exchange.
_WORDS, _ROOM = 256, 24 * 1024
_FAILED = "failed: "
_UNHARMED = "the adapter is as before the batch"


class Ranks:
    """The processes of torch.distributed's default group, each with its own rows of every batch.

    The rows of a batch are those of all ranks, in order of rank; ranks may have different numbers of them.
    Every rank calls the same operations in the same order. Whatever one of them gets, all get, bit for bit.
    Alone (size 1), every operation returns its argument.

    Attributes:
        size: how many processes there are.
        rank: which of them this one is.
        alone: whether it is the only one; then nothing needs to be exchanged.
    """

    def __init__(self, size: int = 1, rank: int = 0, served: Sequence[str] = ("cpu",)) -> None:
        self.size, self.rank, self.alone = size, rank, size == 1
        self._served = tuple(served)  # the types of devices that the group can send from
        self._lost = ""

    @classmethod
    def found(cls, wanted: bool = True) -> "Ranks":
        """All ranks of the default process group, if there is one and it is wanted; else this one alone."""
        if not (wanted and dist.is_available() and dist.is_initialized()):
            return cls()
        served = [entry.split(":")[0] for entry in dist.get_backend_config().split(",")]
        return cls(dist.get_world_size(), dist.get_rank(), served)

    # ------------------------------------------------------------------ exchanges

    def counts(self, rows: int, what: str = "numbers of rows") -> list[int]:
        """The rows of every rank; RankError if another rank describes its exchange otherwise."""
        return [rows] if self.alone else [number for number, _ in self._frames(what, rows)]

    def agree(self, flag: bool, what: str = "whether all went well") -> bool:
        """Whether the flag is true on every rank."""
        return all(self.counts(int(flag), what))

    def gather(self, rows: Tensor, counts: Sequence[int], what: str = "rows") -> Tensor:
        """The rows of all ranks, of any dtype; the other ranks' are constants.

        The gradient of this rank's rows is multiplied by `size`: where every rank has the same loss of all
        rows, the average over ranks of their parameters' gradients is the gradient of that loss,

            ∇L = 1/size · Σ_r (size · Σ_{i of r} ∂L/∂z_i · ∇z_i + ∇P),

        with P the terms of the loss that depend on the parameters directly.
        """
        if self.alone:
            return rows
        if len(counts) != self.size or counts[self.rank] != len(rows):
            raise ValueError(
                f"expected {self.size} counts with {len(rows)} for rank {self.rank}, got {list(counts)}"
            )
        return _gathered(rows, self, counts, what)

    def own(self, gathered: Tensor, counts: Sequence[int]) -> Tensor:
        """This rank's rows of those of all."""
        start = sum(counts[: self.rank])
        return gathered if self.alone else gathered[start : start + counts[self.rank]]

    def sums(self, values: Tensor, what: str = "sums") -> Tensor:
        """The sum over ranks of a tensor of numbers that has the same shape on all of them."""
        if self.alone:
            return values
        flat = values.detach().reshape(-1)
        described, sent = f"{what} of {_kind(values, values.shape)}", _bytes(flat)
        if len(sent) <= _ROOM:
            parts = [_typed(part[: len(sent)], flat) for _, part in self._frames(described, 0, sent)]
            return torch.stack(parts).sum(0, dtype=values.dtype).reshape(values.shape)
        self._frames(described)
        total = self._all_reduce(described, flat.to(self._carrier(flat.device), copy=True))
        return total.to(values.device).reshape(values.shape)

    def average(self, tensors: Sequence[Tensor], what: str = "gradients") -> list[Tensor]:
        """The means over ranks of tensors of floating-point numbers; half precision is added up in single."""
        if self.alone:
            return list(tensors)
        wide = [at_least_single(tensor.detach()) for tensor in tensors]
        kinds = dict.fromkeys((tensor.dtype, tensor.device) for tensor in wide)
        found: dict[int, Tensor] = {}
        for kind in kinds:
            chosen = [index for index, tensor in enumerate(wide) if (tensor.dtype, tensor.device) == kind]
            flat = torch.cat([wide[index].reshape(-1) for index in chosen])
            means = (self.sums(flat, what) / self.size).split([wide[index].numel() for index in chosen])
            found.update(zip(chosen, means, strict=True))
        return [found[index].reshape(t.shape).to(t.dtype) for index, t in enumerate(tensors)]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make an error of one rank an error of all: the others get RankError at their next exchange.

        All of them have then exchanged the same, and can go on with another batch.
        """
        try:
            yield
        except RankError:
            raise  # the others have it, or cannot be reached
        except Exception as error:
            if not self.alone:
                with suppress(RankError):
                    self._frames(f"{_FAILED}{type(error).__name__}: {error}")
            raise

    # ------------------------------------------------------------------ transport

    def rows_of_all(self, rows: Tensor, counts: Sequence[int], what: str) -> list[Tensor]:
        """The rows of every rank, as bytes on the way: any dtype, and every bit of a NaN."""
        described = f"{what} of {_kind(rows, rows.shape[1:])}, {tuple(counts)} of them"
        flat = rows.detach().reshape(-1)
        sent = _bytes(flat)
        each = math.prod(rows.shape[1:]) * flat.element_size()
        largest = max(counts) * each
        if largest <= _ROOM:
            parts = [part for _, part in self._frames(described, 0, sent)]
        else:
            self._frames(described)
            carrier = self._carrier(rows.device)
            padded = torch.zeros(largest, dtype=torch.uint8, device=carrier)
            padded[: len(sent)] = sent.to(carrier)
            parts = self._all_gather(described, padded)
        return [
            _typed(part[: count * each], flat).reshape(count, *rows.shape[1:])
            for part, count in zip(parts, counts, strict=True)
        ]

    def _frames(self, what: str, rows: int = 0, few: Tensor | None = None) -> list[tuple[int, Tensor]]:
        """A number and a few bytes of every rank, after a check that all send the same thing."""
        device = self._carrier(torch.device("cpu"))
        frame = torch.zeros(_WORDS + _ROOM, dtype=torch.uint8)
        words = bytearray(f"{rows}|{what}".encode()[:_WORDS])
        frame[: len(words)] = torch.frombuffer(words, dtype=torch.uint8)
        frame = frame.to(device)
        if few is not None:
            frame[_WORDS : _WORDS + len(few)] = few.to(device)
        frames = self._all_gather(what, frame)
        texts = [bytes(other[:_WORDS].tolist()).rstrip(b"\0").decode(errors="replace") for other in frames]
        numbers, words_of = zip(*(text.split("|", 1) for text in texts), strict=True)
        for rank, theirs in enumerate(words_of):
            if theirs.startswith(_FAILED):
                raise RankError(f"rank {rank} {theirs}; {_UNHARMED}")
        for rank, theirs in enumerate(words_of):
            if theirs != words_of[self.rank]:
                raise RankError(
                    f"expected the same of every rank, got {words_of[self.rank]} from rank {self.rank} "
                    f"and {theirs} from rank {rank}; {_UNHARMED}"
                )
        return [(int(number), other[_WORDS:]) for number, other in zip(numbers, frames, strict=True)]

    def _all_gather(self, what: str, mine: Tensor) -> list[Tensor]:
        from torch._C._distributed_c10d import AllgatherOptions

        everyone, options = [torch.empty_like(mine) for _ in range(self.size)], AllgatherOptions()

        def start(group: "ProcessGroup", limit: timedelta) -> "Work":
            options.timeout = limit
            return group.allgather([everyone], [mine], options)

        self._send(what, mine.device, start)
        return everyone

    def _all_reduce(self, what: str, mine: Tensor) -> Tensor:
        from torch._C._distributed_c10d import AllreduceOptions

        options = AllreduceOptions()  # which adds up

        def start(group: "ProcessGroup", limit: timedelta) -> "Work":
            options.timeout = limit
            return group.allreduce([mine], options)

        self._send(what, mine.device, start)
        return mine

    def _send(
        self, what: str, device: torch.device, start: Callable[["ProcessGroup", timedelta], "Work"]
    ) -> None:
        """Run a collective of torch's and wait for its end, with a limit."""
        if self._lost:
            raise RankError(f"a rank was lost before ({self._lost}): all ranks must start again")
        try:
            group = dist.group.WORLD
            if group is None:
                raise RuntimeError("the process group was destroyed")
            limit = min(PATIENCE, group._get_backend(device).options._timeout)
            # The limit goes into the operation: where only the waiting for it ended, gloo's thread would wait
            # on, the process could not exit, and the other ranks would wait.
            work = start(group, limit)
            if device.type != "cpu":
                # NCCL's wait makes the stream wait, and not the host: whoever used the result would hang.
                _poll(work, limit)
            work.wait(limit)
        except (RuntimeError, ValueError) as error:
            self._lost = str(error).strip()
            raise RankError(
                f"a rank was lost or fell behind while rank {self.rank} of {self.size} exchanged {what} "
                f"({self._lost}); {_UNHARMED}"
            ) from error

    def _carrier(self, device: torch.device) -> torch.device:
        """The device to send a tensor from: its own, if the group can send from there."""
        if device.type in self._served:
            return device
        if "cpu" in self._served:
            return torch.device("cpu")
        return torch.device(self._served[0], torch.cuda.current_device())


class _Gathered(torch.autograd.Function):
    """`Ranks.gather`: nothing is exchanged on the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks, counts: Sequence[int], what: str) -> Tensor:
        ctx.ranks, ctx.counts = ranks, counts
        return torch.cat(ranks.rows_of_all(rows, counts, what))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        own: Tensor = ctx.ranks.own(gradients[0], ctx.counts) * ctx.ranks.size
        return own, None, None, None


_gathered: Callable[..., Tensor] = _Gathered.apply


def _poll(work: "Work", limit: timedelta) -> None:
    end = time.monotonic() + limit.total_seconds()
    while not work.is_completed():
        if time.monotonic() > end:
            raise RuntimeError(f"no answer in {limit}")
        time.sleep(1e-5)


def _kind(values: Tensor, shape: Sequence[int]) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} {' x '.join(map(str, shape))}".strip()


def _bytes(flat: Tensor) -> Tensor:
    return flat.contiguous().view(torch.uint8)


def _typed(part: Tensor, like: Tensor) -> Tensor:
    """Bytes as numbers again, where they came from."""
    return part.to(like.device).clone().view(like.dtype)
