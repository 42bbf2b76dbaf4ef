"""Batch norm by statistics that follow the stream."""

from dataclasses import dataclass

from equipoise.core.method import Context, Update
from equipoise.methods.parts.lone_samples import STATISTICS_FOLLOW, StatisticsMethod
from equipoise.options import option
from equipoise.registry import register


@register
@dataclass(frozen=True, kw_only=True)
class BnEma(StatisticsMethod):
    """Normalises by an exponential moving average of batch-normalisation statistics, the batch included.

    The average starts from the source's statistics. A batch of n samples has the share
    a = 1 − (1 − norm_momentum)^(n / 50) in it, and joins it before it is normalised:

        mean ← mean + a · d,  var ← (1 − a) · var + a · var_batch + a · (1 − a) · d²,  d = mean_batch − mean

    (`running_statistics`). These are the statistics of `poise` without prototypes, jumps and
    temperature. One forward a batch, no gradients; a batch of one sample is no special case.

    Args:
        norm_momentum: the share that 50 samples have in the statistics.

    Deviations: public implementations run a forward in train mode, which moves the averages, and another in
    eval mode for the answer; here a layer's statistics move just before it uses them, so that later layers
    get other inputs than in the first of two forwards. There a batch has the same share whatever its size,
    and variances are averaged without the distance of the means.
    """

    name = "bn_ema"

    norm_momentum: float = option(0.1, low=0, high=1)

    def step(self, context: Context) -> Update:
        """Run one forward on the statistics that the batch has joined."""
        logits, _ = context.student.on_running_statistics(context.batch, self.norm_momentum)
        return Update(logits, idle=STATISTICS_FOLLOW)
