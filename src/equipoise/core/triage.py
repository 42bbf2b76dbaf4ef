"""Which samples of a batch can be answered, and the answer put together again."""

import torch
from torch import Tensor

from equipoise.network.batch import Batch


class Triage:
    """Sets samples aside, one cause after the other, and fills their places in the answer.

    Attributes:
        rest: the samples that are left.
        silent: how many were set aside because the source model says nothing of them.
    """

    def __init__(self, batch: Batch) -> None:
        """Set aside the samples with non-finite input: their logits will be NaN."""
        self._rows, self._one = batch.rows, batch.first()
        self._good = batch.finite()
        self._fill = torch.full(self._good.shape, torch.nan, device=self._good.device)
        self.rest = batch.select(self._good)
        self.silent = 0

    def keep_usable(self, tau: Tensor) -> Tensor:
        """Set aside what the source model cannot judge; returns which samples of the rest stay.

        An infinite tau means logits of norm zero: the source says nothing, and neither does the answer
        (zeros). Other non-finite ones come from non-finite logits.
        """
        usable, silent = tau.isfinite(), tau == torch.inf
        self._fill[self._good] = torch.where(silent, 0.0, torch.nan)
        self._good[self._good.clone()] = usable
        self.rest = self.rest.select(usable)
        self.silent = int(silent.sum())
        return usable

    def rest_or_stand_in(self) -> Batch:
        """The samples that are left; without any, one of zeros, for a forward that other processes await."""
        if self.rest.rows:
            return self.rest
        return self._one.map(torch.zeros_like)

    @property
    def set_aside(self) -> int:
        """How many samples were set aside."""
        return self._rows - self.rest.rows

    def complete(self, logits: Tensor) -> Tensor:
        """The answer to the whole batch, from the logits of the samples left."""
        if not self.set_aside:
            return logits
        answer = self._fill.to(logits.dtype).unsqueeze(1).repeat(1, logits.shape[1])
        answer[self._good] = logits
        return answer
