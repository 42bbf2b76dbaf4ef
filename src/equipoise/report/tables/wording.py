"""What tables call things, and the sentences under them."""

import re
from collections.abc import Iterable
from hashlib import sha256

from equipoise.report.numbers.paper import counted, experiments, paper_name, papers_setting
from equipoise.report.numbers.results import Setting, TableScope
from equipoise.report.numbers.runs import MethodVariant, Metric, VariantScores
from equipoise.report.tables.table import Table, common_gap

NAMES: dict[Metric, str] = {
    "accuracy": "accuracy",
    "ece": "ECE",
    "nll": "NLL",
    "entropy": "entropy",
    "brier": "Brier score",
}
HEADINGS: dict[Metric, str] = {
    "accuracy": "Accuracy ↑",
    "ece": "ECE ↓",
    "nll": "NLL ↓",
    "entropy": "Entropy",
    "brier": "Brier ↓",
}
"""With an arrow to where it is better; entropy, in bits, has no better."""
PROTOCOL_WORDS: dict[str, str] = {
    "online": "online: the answers given while adapting count",
    "after-pass": "after a pass: the answers of a second pass, when adapting is done, count",
}
DOUBTFUL, INCOMPLETE = "†", "‡"
"""The marks of a doubtful printed number, and of a number of ours that is not of everything."""


LONGEST_KEY = 100
"""How long a table's key may be, since it names a file."""


def variant_name(variant: MethodVariant) -> str:
    """A method and what its logits are divided by: "tent (raw)", "dec (mean)"."""
    return f"{variant.label} ({'raw' if variant.tempering == 'none' else variant.tempering})"


def subject(scope: TableScope) -> str:
    """The data set and the network, and the setting where it is not the paper's, images included."""
    setting = scope.setting
    name = f"{paper_name(setting.data)}, {paper_name(scope.backbone)}"
    same = is_papers(setting) and setting.origin == "official"
    return name if same else f"{name} ({setting_words(setting)})"


def setting_words(setting: Setting) -> str:
    """A setting in a few words: "at most 500 images of a part, 1 epoch"."""
    words = ["all images" if setting.limit is None else f"at most {setting.limit} images of a part"]
    words.append(counted(setting.epochs, "epoch"))
    if setting.input_size is not None:
        words.append(f"{setting.input_size} px")
    if setting.order != "shuffled":
        words.append(f"{setting.order} stream")
    if setting.origin == "made":
        words.append("images made here")
    return ", ".join(words)


def is_papers(setting: Setting) -> bool:
    """Whether the paper has the data set and ran it like this, whoever made the images."""
    experiment = experiments().get(setting.data)
    return experiment is not None and not experiment.differences(setting)


def setting_note(setting: Setting) -> str:
    """A sentence about the setting, and whether its numbers can be held against the paper's."""
    experiment = experiments().get(setting.data)
    if experiment is None:
        return f"{capital(setting_words(setting))}."
    made = setting.origin == "made"
    if differences := experiment.differences(setting):
        told = f"{capital(listed(differences))}: a trial, not comparable with the paper."
        return f"{told} The corrupted images were made here, with a frost that is drawn." if made else told
    told = f"{capital(setting_words(setting._replace(origin='official')))}, as in the paper"
    if made:
        told += ", but for the corrupted images, which were made here, with a frost that is drawn"
    return f"{told}."


def seeds_note(seeds: Iterable[int]) -> str:
    """Which seeds the numbers are means over."""
    there = [str(seed) for seed in seeds]
    return f"Seed {there[0]}." if len(there) == 1 else f"Means over the seeds {listed(there)}."


def split_labels_note(scores: VariantScores) -> list[str]:
    """What to do about labels that stand for several methods."""
    return [
        f"The results call several methods {label}; they are kept apart as {listed(names)}. "
        "Give each a label of its own in the recipe."
        for label, names in scores.split_labels.items()
    ]


def gap_notes(table: Table) -> list[str]:
    """What is missing behind which numbers of ours."""
    if everywhere := common_gap(table):
        return [f"Every number of ours has only {everywhere}."]
    rows: dict[str, dict[str, None]] = {}
    for row in table.rows:
        for entry in row.entries:
            if entry.missing and entry.ours is not None:
                rows.setdefault(entry.missing, {})[row.label] = None
    return [f"{INCOMPLETE} Only {missing}: {listed(labels)}." for missing, labels in rows.items()]


def doubt_notes(table: Table) -> list[str]:
    """Why printed numbers are doubtful, each reason once with the cells that it is about."""
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in table.rows:
        for column, entry in zip(table.columns, row.entries, strict=True):
            if entry.suspicious:
                rows = cells.setdefault((entry.suspicious, plain_heading(column.metric)), {})
                rows.setdefault(row.label, []).append(column.heading)
    metrics: dict[tuple[str, str], list[str]] = {}
    for (reason, metric), rows in cells.items():
        metrics.setdefault((reason, listed(_cell(*cell) for cell in rows.items())), []).append(metric)
    return [f"{DOUBTFUL} {listed(names)} of {rows}: {reason}." for (reason, rows), names in metrics.items()]


def plain_heading(heading: str) -> str:
    """A heading without its arrow."""
    return heading.rstrip(" ↑↓")


def listed(names: Iterable[str]) -> str:
    """Names as a sentence lists them: "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def table_key(scope: TableScope, kind: str) -> str:
    """A stable name for a table: data set, network, kind, protocol, and what of the setting is not usual."""
    setting = scope.setting
    usual = papers_setting(setting.data) if setting.data in experiments() else None
    parts = [setting.data, scope.backbone, kind, scope.protocol]
    if setting.limit is not None:
        parts.append(f"limit{setting.limit}")
    if usual is None or setting.epochs != usual.epochs:
        parts.append(f"epochs{setting.epochs}")
    if setting.input_size != (usual and usual.input_size):
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


def capital(text: str) -> str:
    """Text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def _cell(row: str, headings: list[str]) -> str:
    where = [heading for heading in headings if heading]
    return f"{row} ({listed(where)})" if where else row
