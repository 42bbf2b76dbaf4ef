"""Random numbers of a method: drawn on the host by a generator whose state is part of the adapter's."""

import torch
from torch import Tensor

from equipoise.errors import StateError


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
