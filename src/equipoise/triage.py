"""Which samples of a batch can be answered, and the answer put together again."""

import torch
from torch import Tensor

from equipoise.batch import Batch


class Triage:
    """Sets samples aside, one cause after the other, and fills their places in the answer.

    Attributes:
        rest: the samples that are left.
    """

    def __init__(self, batch: Batch) -> None:
        """Set aside the samples with non-finite input: their logits will be NaN."""
        self._rows = batch.rows
        self._good = batch.finite()
        self._fill = torch.full(self._good.shape, torch.nan, device=self._good.device)
        self.rest = batch.select(self._good)
        self._silent = 0

    def keep_usable(self, tau: Tensor) -> Tensor:
        """Set aside what the source model cannot judge; returns which samples of the rest stay.

        An infinite tau means logits of norm zero: the source says nothing, and neither does the answer
        (zeros). Other non-finite ones come from non-finite logits.
        """
        usable, silent = tau.isfinite(), tau == torch.inf
        self._fill[self._good] = torch.where(silent, 0.0, torch.nan)
        self._good[self._good.clone()] = usable
        self.rest = self.rest.select(usable)
        self._silent = int(silent.sum())
        return usable

    @property
    def set_aside(self) -> int:
        """How many samples were set aside."""
        return self._rows - self.rest.rows

    @property
    def reasons(self) -> list[str]:
        """Why, in words for the record."""
        counts = {"non-finite": self.set_aside - self._silent, "zero source logits": self._silent}
        return [f"{count} of {self._rows} set aside: {why}" for why, count in counts.items() if count]

    def complete(self, logits: Tensor) -> Tensor:
        """The answer to the whole batch, from the logits of the samples left."""
        if not self.set_aside:
            return logits
        answer = self._fill.to(logits.dtype).unsqueeze(1).repeat(1, logits.shape[1])
        answer[self._good] = logits
        return answer
