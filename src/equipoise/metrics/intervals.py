"""Confidence intervals that follow from sums alone, so that a stream of any length can have one."""

import torch
from torch import Tensor

from equipoise.errors import OptionError
from equipoise.metrics.bins import BinSums

BOOTSTRAP_REPLICATES = 2000
BOOTSTRAP_SEED = 0


def check_level(level: float) -> float:
    """Check that a confidence level lies strictly between 0 and 1."""
    if not 0 < level < 1:
        raise OptionError(f"expected level strictly between 0 and 1, got {level!r}")
    return level


def wilson_interval(samples: Tensor, successes: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Wilson's score interval of a share: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n).

    Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 1927.
    """
    z = _two_sided_quantile(samples, level)
    share = successes / samples
    shrink = 1 + z.square() / samples
    middle = (share + z.square() / (2 * samples)) / shrink
    half = z * (share * (1 - share) / samples + z.square() / (4 * samples.square())).sqrt() / shrink
    return (middle - half).clamp(min=0), (middle + half).clamp(max=1)


def normal_interval(
    samples: Tensor, total: Tensor, total_of_squares: Tensor, level: float
) -> tuple[Tensor, Tensor]:
    """The interval m ± z s/√n of the mean of values that are never negative; NaN below two samples."""
    mean = total / samples
    # Rounding may leave a tiny negative difference when all values are alike.
    variance = ((total_of_squares - total * mean) / (samples - 1)).clamp(min=0)
    half = _two_sided_quantile(samples, level) * (variance / samples).sqrt()
    return (mean - half).clamp(min=0), mean + half


def bootstrap_expected_error(sums: BinSums, level: float) -> tuple[Tensor, Tensor]:
    """The basic bootstrap interval [2e - q_hi, 2e - q_lo] of the expected calibration error e.

    A replicate draws the bin sizes from a multinomial and each bin's Σ (correct - confidence) from the
    normal distribution with the bin's own mean and variance. Mirroring the quantiles at e takes off the
    upward bias of a sum of absolute values, which the bootstrap repeats. Davison and Hinkley, "Bootstrap
    Methods and their Application", 1997, section 5.2.

    Where e is no larger than replicates of a calibrated model reach, the interval starts at 0: there the
    mirrored quantile alone would call half of all calibrated models miscalibrated. Bröcker and Smith,
    "Increasing the Reliability of Reliability Diagrams", Weather and Forecasting 2007.
    """
    occupied = sums.size > 0
    if not occupied.any():
        nan = sums.size.new_full((), torch.nan)
        return nan, nan.clone()
    # On the CPU and from a seed of its own: the same answer everywhere, and the caller's random
    # numbers are left alone.
    size, confidence, correct, squared_gap = (column[occupied].cpu() for column in sums)
    total = size.sum()
    generator = torch.Generator().manual_seed(BOOTSTRAP_SEED)
    sizes = _multinomial(size, generator)
    noise = torch.randn(sizes.shape, generator=generator, dtype=size.dtype)
    mean = (correct - confidence) / size
    spread = squared_gap / size
    variance = (spread - mean.square()).clamp(min=0)
    errors = (sizes * mean + (sizes * variance).sqrt() * noise).abs().sum(dim=1) / total
    calibrated_errors = ((sizes * spread).sqrt() * noise).abs().sum(dim=1) / total
    q_low, q_high = torch.quantile(errors, errors.new_tensor([(1 - level) / 2, (1 + level) / 2])).unbind()
    error = (correct - confidence).abs().sum() / total
    calibrated = error <= torch.quantile(calibrated_errors, (1 + level) / 2)
    low = torch.zeros_like(error) if calibrated else (2 * error - q_high).clamp(0, 1)
    high = (2 * error - q_low).clamp(0, 1)
    return low.to(sums.size.device), high.to(sums.size.device)


def _multinomial(size: Tensor, generator: torch.Generator) -> Tensor:
    """Resampled bin sizes, shape (replicates, bins), drawn bin by bin from what the earlier bins left."""
    left = size.sum().repeat(BOOTSTRAP_REPLICATES)
    share_of_rest = size / size.flip(0).cumsum(0).flip(0)
    drawn = []
    for share in share_of_rest:
        drawn.append(torch.binomial(left, share.expand_as(left), generator=generator))
        left = left - drawn[-1]
    return torch.stack(drawn, dim=1)


def _two_sided_quantile(like: Tensor, level: float) -> Tensor:
    quantile: Tensor = torch.special.ndtri(like.new_tensor((1 + level) / 2))
    return quantile
