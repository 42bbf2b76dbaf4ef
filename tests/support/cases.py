"""Cases of the tests that are for all methods: each with its options, and the models that it can adapt."""

from typing import Any

import pytest
from torch import nn

import equipoise as eq
from tests.support.mean_teacher import MeanTeacher
from tests.support.models import MODELS, make, rehearsed

# Every method as it comes, and with options under which much happens in a short stream.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in eq.list_methods()},
    "source, each tempered": ("source", {"tempering": "median"}),
    "norm, blended": ("norm", {"prior": 4.0, "tempering": "mean"}),
    "shot_im, lively": (
        "shot_im",
        {"learning_rate": 0.05, "pseudo_weight": 0.3, "confidence": 0.2, "steps": 2, "window": 3},
    ),
    "pseudo_label, lively": ("pseudo_label", {"confidence": 0.2, "learning_rate": 0.05, "window": 3}),
    "bn_alpha, lively": ("bn_alpha", {"alpha": 0.7, "norm_momentum": 0.5, "tempering": "median"}),
    "bn_ema, lively": ("bn_ema", {"norm_momentum": 0.9, "tempering": "mean"}),
    "tent, lively": ("tent", {"optimizer": "sgd", "learning_rate": 0.05, "steps": 2, "window": 3}),
    "eta, lively": ("eta", {"margin": 1.0, "epsilon": 2.0, "learning_rate": 0.05, "tempering": "median"}),
    "eata, lively": ("eata", {"margin": 1.0, "epsilon": 0.99, "optimizer": "adam", "window": 2}),
    "tent, come": ("tent", {"objective": "come", "learning_rate": 0.05, "tempering": "mean"}),
    "sar, lively": ("sar", {"margin": 0.99, "learning_rate": 0.05, "steps": 2, "window": 3}),
    "sar, collapsing": (
        "sar",
        {"margin": 1.0, "reset_below": 6.0, "optimizer": "adam", "objective": "come", "tempering": "median"},
    ),
    "deyo, lively": ("deyo", {"margin": 1.0, "min_drop": -0.5, "learning_rate": 0.05, "window": 2}),
    "poem, lively": ("poem", {"margin": 1.0, "learning_rate": 0.05, "window": 3, "tempering": "mean"}),
    "rdumb, lively": (
        "rdumb",
        {"base": "tent", "every": 12, "options": {"optimizer": "sgd", "learning_rate": 0.05, "window": 3}},
    ),
    "rdumb, sotta": (
        "rdumb",
        {
            "base": "sotta",
            "every": 68,
            "options": {"confidence": 0.0, "every": 2, "capacity": 4},
            "tempering": "median",
        },
    ),
    "t3a, lively": ("t3a", {"supports": 2, "tempering": "mean"}),
    "sotta, lively": ("sotta", {"confidence": 0.0, "every": 3, "capacity": 4, "tempering": "median"}),
    "sotta, all": ("sotta", {"confidence": 0.2, "every": 4, "parameters": "all", "steps": 2}),
    "rotta, lively": (
        "rotta",
        {"every": 3, "capacity": 4, "learning_rate": 0.02, "decay": 0.5, "norm_momentum": 0.5},
    ),
    "petta, lively": (
        "petta",
        {"every": 3, "capacity": 4, "learning_rate": 0.02, "decay": 0.5, "tempering": "median"},
    ),
    "foa_shift, lively": ("foa_shift", {"decay": 0.2, "tempering": "median"}),
    "lame, lively": ("lame", {"affinity": "rbf", "neighbours": 3, "tempering": "mean"}),
    "poise, rehearsed": ("poise", {"tempering": "rehearsed"}),
    "tent, rehearsed": ("tent", {"tempering": "rehearsed"}),
    "dec, released": ("dec", {"reading": "released", "tempering": "median"}),
    "dec, lively": (
        "dec",
        {"optimizer": "adam", "learning_rate": 0.01, "steps": 2, "source_copy": "swapped"},
    ),
    "cotta": ("cotta", {"views": 2}),
    "cotta, lively": (
        "cotta",
        {
            "views": 3,
            "confidence": 0.6,
            "restore": 0.2,
            "decay": 0.5,
            "mirrored": True,
            "optimizer": "sgd",
            "learning_rate": 0.05,
        },
    ),
    "roid, lively": (
        "roid",
        {"learning_rate": 0.05, "prior_correction": True, "mirrored": True, "window": 3},
    ),
    "cmf, lively": ("cmf", {"optimizer": "sgd", "learning_rate": 0.02, "steps": 2, "tempering": "median"}),
    "rmt, lively": (
        "rmt",
        {
            "contrast": 0.5,
            "decay": 0.5,
            "mirrored": True,
            "optimizer": "sgd",
            "learning_rate": 0.05,
            "steps": 2,
            "tempering": "median",
        },
    ),
    "memo": ("memo", {"views": 2}),
    "memo, lively": ("memo", {"views": 2, "learning_rate": 0.5, "prior": 1.0, "tempering": "mean"}),
    "mean teacher": (MeanTeacher.name, {"rate": 0.05, "decay": 0.5, "tempering": "median"}),
}
FULL_SOON: dict[str, dict[str, Any]] = {
    "sotta": {"confidence": 0.0, "every": 8, "capacity": 8},
    "rotta": {"every": 8, "capacity": 2},
    "petta": {"every": 8, "capacity": 2},
}
"""Options for a memory that is full after one batch of 8, so that steps can be captured."""

ON_BATCH_NORM = ("norm", "bn_alpha", "bn_ema")
ON_NORMS = (
    "tent",
    "eta",
    "eata",
    "sar",
    "deyo",
    "poem",
    "rdumb",
    "sotta",
    "rotta",
    "petta",
    "roid",
    "cmf",
    "pseudo_label",
    MeanTeacher.name,
)


def impossible(case: str, kind: str) -> bool:
    """Whether the method cannot work on the model, by what it needs."""
    method, options = CASES[case]
    if method in ON_BATCH_NORM:
        return kind != "batch_norm"
    return method in ON_NORMS and kind == "norm_free" and "parameters" not in options


POSSIBLE = [(case, kind) for case in CASES for kind in MODELS if not impossible(case, kind)]


def _in_short(case: str, kind: str) -> bool:
    """Whether a pair is in `make test`: a method as it comes has the first model, other cases take turns."""
    kinds = [each for each in MODELS if not impossible(case, each)]
    turn = 0 if case in eq.list_methods() else list(CASES).index(case) % len(kinds)
    return kind == kinds[turn]


IN_SHORT_OR_SLOW = [
    pytest.param(case, kind, marks=[] if _in_short(case, kind) else [pytest.mark.slow])
    for case, kind in POSSIBLE
]
"""All pairs, of which all but one for each case are slow tests: they are too many for every change."""


def create(case: str, model: nn.Module, source: eq.SourceStatistics, **more: Any) -> eq.Adapter:
    """The adapter of a case, with a rehearsal where it needs one."""
    method, options = CASES[case]
    if method == MeanTeacher.name:
        eq.register(MeanTeacher)  # only for this test: conftest.py takes it out again
    if options.get("tempering") == "rehearsed":
        source = rehearsed(source, method)
    return eq.create(method, model, source, **{**options, **more})


def build(case: str, kind: str, **more: Any) -> tuple[eq.Adapter, nn.Module]:
    """The adapter of a case on a small model, and the model."""
    model, source = make(kind)
    return create(case, model, source, **more), model
