"""Take one of the demo's domains as the unseen one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.data.demo import Domain


@dataclass(frozen=True)
class LeaveOneOut:
    """The pictures a model is trained on, and the domain it has never seen."""

    sources: tuple[str, ...]
    images: Tensor
    labels: Tensor
    held_out: Domain


def leave_one_out(domains: list[Domain], held_out: str) -> LeaveOneOut:
    """Take one domain as the unseen one and join the others for training."""
    sources = [domain for domain in domains if domain.name != held_out]
    (unseen,) = [domain for domain in domains if domain.name == held_out]
    return LeaveOneOut(
        sources=tuple(domain.name for domain in sources),
        images=torch.cat([domain.images for domain in sources]),
        labels=torch.cat([domain.labels for domain in sources]),
        held_out=unseen,
    )
