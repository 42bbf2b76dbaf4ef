"""The names of things in tables and figures, and sentences about a setting."""

import re
from hashlib import sha256

import pandas as pd

from equipoise.report.paper import counted, experiments, paper_name
from equipoise.report.results import Scope, Setting
from equipoise.report.summary import Part
from equipoise.report.table import listed

NAMES = {"accuracy": "accuracy", "ece": "ECE", "nll": "NLL", "entropy": "entropy", "brier": "Brier score"}
HEADINGS = {
    "accuracy": "Accuracy ↑",
    "ece": "ECE ↓",
    "nll": "NLL ↓",
    "entropy": "Entropy",
    "brier": "Brier ↓",
}
"""With an arrow to where it is better; entropy, in bits, has no better."""
PROTOCOL_WORDS = {
    "online": "online: the answers given while adapting count",
    "after-pass": "after a pass: the answers of a second pass, when adapting is done, count",
}
SHORT = {"none": "raw", "mean": "mean of τ", "median": "median of τ", "sample": "each image's τ", "fixed": "fixed τ"}
"""The divisor of the logits in a word or two; other temperings are called by their names."""
LONGEST_KEY = 100
"""The most characters of a table's key, since it names a file."""


def short(tempering: str) -> str:
    """A tempering in a word or two."""
    return SHORT.get(tempering, tempering)


def subject(scope: Scope) -> str:
    """Data set, network and protocol, and the setting where it is not the paper's."""
    name = f"{paper_name(scope.setting.data)}, {paper_name(scope.backbone)}, {scope.protocol}"
    experiment = experiments().get(scope.setting.data)
    usual = experiment is not None and not experiment.differences(scope.setting)
    return name if usual and scope.setting.origin == "official" else f"{name} ({setting_words(scope.setting)})"


def setting_words(setting: Setting) -> str:
    """A setting in a few words: "at most 500 images of a part, 1 epoch"."""
    words = [] if setting.limit is None else [f"at most {setting.limit} images of a part"]
    words.append(counted(setting.epochs, "epoch"))
    if setting.input_size is not None:
        words.append(f"{setting.input_size} px")
    if setting.order != "shuffled":
        words.append(f"{setting.order} stream")
    if setting.origin == "made":
        words.append("images made here")
    return ", ".join(words)


def part_note(part: Part) -> str:
    """The setting, whether it is the paper's, the streams, and the seeds of a part, in sentences."""
    setting, experiment = part.scope.setting, experiments().get(part.scope.setting.data)
    told = _capital(setting_words(setting))
    if experiment is not None:
        differences = experiment.differences(setting)
        told = (
            f"{_capital(listed(differences))}: a trial, not comparable with the paper"
            if differences
            else f"{told}, as in the paper"
        )
        if setting.origin == "made":
            told += "; the corrupted images were made here, with a frost that is drawn"
    seeds = [str(seed) for seed in part.seeds]
    means = f"Seed {seeds[0]}." if len(seeds) == 1 else f"Means over the seeds {listed(seeds)}."
    return f"{told}. {stream_words(part.runs)} {means}"


def stream_words(runs: pd.DataFrame) -> str:
    """The images and classes of the streams, and the files that were left out, as counts."""
    told = f"{_range(runs['images'])} images a stream"
    if runs["classes"].max():  # lines of old versions count none
        told += f" of {_range(runs['classes'])} classes"
    if runs["left_out"].max():
        told += f", {_range(runs['left_out'])} files of the stream or the training images left out (unreadable)"
    return f"{told}."


def table_key(scope: Scope, kind: str) -> str:
    """A stable name for a table: data set, network, kind, protocol, and the unusual parts of the setting."""
    setting, usual = scope.setting, experiments().get(scope.setting.data)
    parts = [setting.data, scope.backbone, kind, scope.protocol]
    if setting.limit is not None:
        parts.append(f"limit{setting.limit}")
    if usual is None or setting.epochs != usual.epochs:
        parts.append(f"epochs{setting.epochs}")
    if (setting.input_size or 0) != (usual.input_size if usual and usual.input_size != usual.own_size else 0):
        parts.append(f"{setting.input_size or 'own'}px")
    if setting.order != "shuffled":
        parts.append(setting.order)
    if setting.origin == "made":
        parts.append("made")
    whole = "-".join(part for part in parts if part)
    key = re.sub(r"[^A-Za-z0-9_.-]+", "-", whole)
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key[:LONGEST_KEY]}-{sha256(whole.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _range(values: "pd.Series[int]") -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
