"""The regret of rules of choice, joined from recommendations and results made by hand."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from benchmarks.recommendation.regret_table import (
    accuracies_of,
    choices,
    chosen_labels,
    forms_of,
    read_results,
    report,
    short_list,
    table,
)
from benchmarks.recommendation.rules import RULES, Rule, gains_by_shift, shrunk_gain, source_of
from equipoise.recommendation.candidates import Candidate
from equipoise.recommendation.choice import Form, ShiftSums

SHIFTS, SAMPLES = 10, 100
TRIED = {"source": 0.5, "norm": 0.6, "tent": 0.55, "poise": 0.58, "cotta": 0.9}
"""On made-up shifts; "cotta" is in no short list."""
MET = {"source": 0.4, "norm": 0.45, "tent": 0.5, "poise": 0.47, "cotta": 0.3, "memo": 0.7}
"""In the comparison, which has more methods."""


def setting(data: str, seed: int = 0) -> dict[str, Any]:
    return {"data": data, "backbone": "net", "target": "t", "seed": seed, "stream": "continual"}


def recommendation_rows(data: str, tried: dict[str, float] = TRIED) -> pd.DataFrame:
    rows = []
    for label, accuracy in tried.items():
        for shift in range(SHIFTS):
            correct = round(SAMPLES * accuracy) + (shift % 2 if label != "source" else 0)
            own = {"label": label, "tempering": "none", "shift": f"s{shift}", "samples": SAMPLES}
            scores = {"correct": correct, "nll": 50.0, "seconds": 1.0, "chosen": False}
            rows.append({**setting(data), **own, **scores, "problem": None})
    rows.append({**setting(data), "label": "broken", "tempering": "none", "problem": "no luck"})
    return pd.DataFrame(rows)


def result_lines(data: str, accuracies: dict[str, float] = MET) -> list[dict[str, Any]]:
    lines = []
    for label, accuracy in accuracies.items():
        cell = {**setting(data), "order": "continual", "label": label, "protocol": "online", "tier": 5}
        lines.append(
            {"status": "ok", "cell": {**cell, "tempering": "none"}, "scores": {"accuracy": accuracy}}
        )
    return lines


def written(folder: Path, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_results_are_those_of_methods_as_deployed(tmp_path: Path) -> None:
    lines = result_lines("digits")
    changed = json.loads(json.dumps(lines))
    for line in changed:
        line["cell"]["tempering"] = "rehearsed"
        line["scores"]["accuracy"] += 0.01 if line["cell"]["label"] == "poise" else 0
    other = {**lines[0], "cell": {**lines[0]["cell"], "tempering": "mean"}, "scores": {"accuracy": 0.99}}
    late = {**lines[0], "cell": {**lines[0]["cell"], "protocol": "after-pass"}, "scores": {"accuracy": 0.98}}
    failed = {**lines[1], "status": "failed", "scores": None}
    found = read_results([written(tmp_path / "out", [*changed, *lines, other, late, failed])])
    assert len(found) == 1
    row = found.iloc[0]
    assert row["poise"] == pytest.approx(0.48)
    assert row["source"] == 0.4
    assert row["norm"] == 0.45


def test_a_folder_and_a_packed_file_say_the_same(tmp_path: Path) -> None:
    folder = written(tmp_path / "out", result_lines("digits"))
    rows = [
        {**setting("digits"), "tier": 5, "label": label, "tempering": "none", "accuracy": accuracy}
        for label, accuracy in MET.items()
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "packed.csv", index=False)
    pd.testing.assert_frame_equal(read_results([folder]), read_results([tmp_path / "packed.csv"]))


def test_regret_is_the_best_of_the_tried_methods_less_the_chosen_one(tmp_path: Path) -> None:
    rows, results = recommendation_rows("digits"), read_results([written(tmp_path, result_lines("digits"))])
    every, short = (chosen_labels(rows, results, short=flag) for flag in (False, True))
    assert set(every["most accurate"]) == {"cotta"}
    assert set(short["most accurate"]) == {"norm"}
    text = table(accuracies_of(short, results), results, list(TRIED))
    (line,) = [line for line in text.splitlines() if line.startswith("| most accurate |")]
    assert line == "| most accurate | 0% | 0.050 | 0.050 | 0% |"
    assert "| always `tent` | 100% | 0.000 | 0.000 | 0% |" in text
    assert "| never adapting | 0% | 0.100 | 0.100 | 0% |" in text
    assert "Best of all 6 methods: 0.200 above" in report(rows, results, ["data"])
    harmed = table(accuracies_of(every, results), results, list(TRIED))
    assert "| most accurate | 0% | 0.200 | 0.200 | 100% |" in harmed


def test_every_data_set_has_a_table_and_runs_of_one_file_alone_are_left_out(tmp_path: Path) -> None:
    rows = pd.concat([recommendation_rows(data) for data in ("digits", "pacs", "unknown")])
    results = read_results([written(tmp_path, [*result_lines("digits"), *result_lines("pacs")])])
    text = report(rows, results, ["data"])
    for part in ("all, 2 runs", "digits, 1 runs", "pacs, 1 runs", *RULES):
        assert part in text
    assert "unknown" not in text
    assert choices(rows, results).count("tent") >= 2
    with pytest.raises(SystemExit, match="no run is in both"):
        report(recommendation_rows("unknown"), results, ["data"])


def test_a_run_without_memory_for_a_method_is_left_out(tmp_path: Path) -> None:
    results = read_results([written(tmp_path, [*result_lines("digits"), *result_lines("pacs")])])
    rows = pd.concat([recommendation_rows("digits"), recommendation_rows("pacs")])
    rows.loc[(rows["data"] == "pacs") & (rows["label"] == "broken"), "problem"] = "OutOfMemoryError: CUDA"
    assert [data for data, *_ in chosen_labels(rows, results, short=True).index] == ["digits"]


def test_a_recommendation_is_held_against_every_tier(tmp_path: Path) -> None:
    mild = [{**line, "cell": {**line["cell"], "tier": 3}} for line in result_lines("digits")]
    results = read_results([written(tmp_path, [*result_lines("digits"), *mild])])
    chosen = chosen_labels(recommendation_rows("digits"), results, short=True)
    assert [tier for *_, tier in chosen.index] == [3, 5]


def test_a_method_that_failed_in_the_comparison_is_not_chosen(tmp_path: Path) -> None:
    met = {label: accuracy for label, accuracy in MET.items() if label != "norm"}
    results = read_results([written(tmp_path, result_lines("digits", met))])
    assert "norm" not in set(chosen_labels(recommendation_rows("digits"), results, short=True).iloc[0])


def test_short_lists_have_the_labels_of_recipes() -> None:
    assert {"eta", "norm", "roid"} < short_list("continual")
    assert {"roid-prior", "bn_alpha"} < short_list("correlated")


# ---------------------------------------------------------------------- rules


def form(name: str, accuracies: list[float]) -> Form:
    hits = SAMPLES * torch.tensor(accuracies, dtype=torch.float64)
    counts = torch.full_like(hits, SAMPLES)
    return Form(Candidate(name), "none", ShiftSums(counts, hits, counts.clone(), 0.0), 1.0)


BASE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9]


def moved(name: str, by: list[float]) -> Form:
    return form(name, [base + each for base, each in zip(BASE, by, strict=True)])


SOURCE = form("source", BASE)
SURE, LUCKY = moved("norm", [0.02] * 10), moved("tent", [0.5] + [-0.01] * 9)
HARD = moved("eta", [0.1] * 6 + [-0.05] * 4)
HARMFUL = moved("sar", [-0.1] * 10)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_no_rule_takes_a_harmful_method(rule: Rule) -> None:
    assert rule([SOURCE, HARMFUL]) is SOURCE
    assert rule([SOURCE]) is SOURCE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("most accurate", LUCKY),
        ("most accurate of the clear", SURE),
        ("median", HARD),
        ("hard half", HARD),
        ("small losses alone", LUCKY),
        ("largest lower end, 90 % each", SURE),
        ("largest lower end, 90 % together", SURE),
        ("recommend()", SURE),
    ],
)
def test_rules_differ_in_what_they_take(name: str, expected: Form) -> None:
    assert RULES[name]([SOURCE, SURE, LUCKY, HARD, HARMFUL]) is expected


def test_the_gain_of_an_uncertain_method_is_shrunk_more() -> None:
    forms = [SOURCE, SURE, LUCKY, HARMFUL, moved("lame", [-0.3] * 10)]
    assert shrunk_gain(SURE, forms) == pytest.approx(0.02, abs=1e-6)
    mean = float(gains_by_shift(LUCKY, forms).mean())
    assert shrunk_gain(LUCKY, forms) < mean
    assert source_of(forms) is SOURCE


def test_forms_have_the_sums_of_their_rows() -> None:
    rows = recommendation_rows("digits")
    (source, *_) = forms_of(rows[rows["samples"] > 0])
    assert source.candidate == Candidate("source")
    assert float(source.sums.hits.sum()) == 50 * SHIFTS
    assert len(source.sums.counts) == SHIFTS
