"""The distance of the classes of a stream from those of its start."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def total_variation(shares: NDArray[Any], others: NDArray[Any]) -> float:
    """½ Σ_c |p_c − q_c|: the share of answers that would have to change, from 0 to 1.

    Two samples of one distribution are not at 0: with n answers in each over C equally frequent classes,
    about √((C − 1) / (π n)).
    """
    return float(np.abs(shares - others).sum() / 2)
