"""The 15 corruptions of TinyImageNet-C at five tiers, for batches of images of any size.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019. docs/corruptions.md says what each does, and where these differ from the original.
"""

from equipoise.research.data.corruptions.dispatch import corrupt, jpeg
from equipoise.research.data.corruptions.tables import CORRUPTIONS, TIERS

__all__ = ["CORRUPTIONS", "TIERS", "corrupt", "jpeg"]
