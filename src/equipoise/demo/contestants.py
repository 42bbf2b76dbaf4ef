"""Who takes part in the demo: every method with its options, and how its answers are tempered."""

from dataclasses import dataclass
from typing import Literal

import equipoise as eq

BASELINE = "source"
BASELINE_LABEL = "no adaptation"
REHEARSED_METHOD = "poise"
"""The method that is rehearsed on source images kept aside."""

DemoTempering = Literal["none", "rehearsed", "mean", "median"]
"""The divisor of the logits of a batch: none, the temperature of the rehearsal, or the mean or median of the
certainty regulariser tau."""

# Defaults are for ImageNet or tuned for other data; these are the published values nearest to our digits.
OPTIONS: dict[str, dict[str, float]] = {
    "eata": {"epsilon": 0.4, "fisher_alpha": 1.0},  # the authors' values for CIFAR: ten classes, small images
    "eta": {"epsilon": 0.4},  # the same
    "sotta": {"confidence": 0.33},  # the DEC paper's value for digits
}
TEMPERED_BY_DEFAULT: dict[str, DemoTempering] = {"dec": "mean", REHEARSED_METHOD: "rehearsed"}


@dataclass(frozen=True)
class Contestant:
    """A method, run once, and the temperings that its answers are scored with."""

    method: str
    temperings: tuple[DemoTempering, ...] = ("none", "median")

    @property
    def name(self) -> str:
        """What the table calls the method."""
        return BASELINE_LABEL if self.method == BASELINE else self.method

    @property
    def own(self) -> DemoTempering:
        """The tempering that the method has by default."""
        return TEMPERED_BY_DEFAULT.get(self.method, "none")

    @property
    def options(self) -> dict[str, float]:
        """The options that are not the method's defaults."""
        return OPTIONS.get(self.method, {})

    def label(self, tempering: DemoTempering) -> str:
        """The name and the tempering, unless the method has that by default."""
        if tempering == self.own:
            return self.name
        return f"{self.name} ({'raw' if tempering == 'none' else tempering})"


def contestants() -> list[Contestant]:
    """Every registered method raw, with the median and as it is by default; the baseline first."""
    names = sorted(eq.list_methods(), key=lambda name: (name != BASELINE, name))
    own = TEMPERED_BY_DEFAULT
    return [
        Contestant(name, ("none", own[name], "median")) if name in own else Contestant(name) for name in names
    ]
