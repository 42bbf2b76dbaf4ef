"""Results of streams over time, typed in: a line for each method, target and seed, with its bins."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.research.report.writer import line


def binned(
    label: str,
    errors: Sequence[float],
    tempering: str = "none",
    *,
    order: str = "continual",
    options: Mapping[str, Any] | None = None,
    segments: Sequence[tuple[str, int]] = (("fog", 2), ("snow", 2)),
    size: int = 100,
    off: float | None = None,
    domain_images: int | None = None,
    **others: Any,
) -> dict[str, Any]:
    """A result with these errors in bins of `size` images."""
    accuracy = 1 - sum(errors) / len(errors)
    given = {"data": "digits-c", "backbone": "smallcnn", "accuracy": accuracy, "order": order, **others}
    made = line(label, tempering, **given)
    if options:
        made["cell"]["order_options"] = dict(options)
    if domain_images is not None:
        made["cell"]["domain_images"] = domain_images
    made["key"] = f"{label}, {tempering}, {order}, {options}, {domain_images}, {others}"
    made["described"] = f"400 images {order} and so on (seed 0)."
    made["bins"] = {
        "images": [size] * len(errors),
        "correct": [round(size * (1 - error)) for error in errors],
        "confidence": [0.9] * len(errors),
        "segments": [{"name": name, "bins": bins} for name, bins in segments],
    }
    if off is not None:
        made["estimate"] = {"value": accuracy, "low": 0.0, "high": 1.0, "covered": 1.0, "off": off}
    return made
