"""Our own tables: averages, paired tests, and each domain and tier."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from equipoise.research.report.table import Entry, compete, file_key
from equipoise.research.report.tables import average_tables, comparison_tables, detail_tables, estimate_tables
from tests.research.report.written import entry, grid, line, part

TARGETS = ["a", "b", "c", "d"]


def scores(lines: list[dict[str, Any]], metric: str, **which: Any) -> list[float]:
    return [e["scores"][metric] for e in lines if all(e["cell"][k] == v for k, v in which.items())]


def test_averages_have_a_row_for_each_method_and_a_column_for_each_tempering() -> None:
    lines = grid("demo", "net", TARGETS, seeds=[0, 1])
    ece, nll, entropy, brier = average_tables(part(lines))
    assert ece.title == "demo, net, online (15 epochs): accuracy and ECE on average"
    words_of = {"none": "raw", "mean": "mean of τ", "median": "median of τ"}
    assert list(ece.frame) == [("Accuracy ↑", ""), *(("ECE ↓", words) for words in words_of.values())]
    assert list(ece.frame.index) == ["source", "tent", "eta", "t3a", "sotta", "dec"]
    shown = ((ece, "ece", "ECE ↓"), (nll, "nll", "NLL ↓"), (entropy, "entropy", "Entropy"))
    for (table, metric, head), (tempering, words) in product(shown, words_of.items()):
        runs = np.reshape(scores(lines, metric, label="eta", tempering=tempering), (4, 2))
        found = entry(table, "eta", head, words)
        expected = runs.mean(), np.std(runs.mean(axis=0), ddof=1)
        assert (found.value, found.std) == pytest.approx(expected)
    eces = [each for _, (metric, _), each in ece.entries if metric == "ECE ↓"]
    best = min(each.value or 1.0 for each in eces)
    assert [each.value for each in eces if each.best] == [best]  # of all temperings together
    assert not any(e.best for _, _, e in entropy.entries)
    assert "± is the standard deviation over the seeds." in ece.notes
    assert len(brier.entries) == 6 * 3


def test_the_floor_is_a_column_of_its_own_and_competes_with_none() -> None:
    lines = grid("demo", "net", ["a", "b"], seeds=[0, 1], labels=["source", "tent"])
    for place, each in enumerate(lines):
        if each["cell"]["tempering"] == "none" and each["cell"]["label"] == "tent":
            each["oracle"] = {"temperature": 2.0, "ece": 0.001 * place, "nll": 0.01 * place}
    places = [place for place, each in enumerate(lines) if "oracle" in each]
    ece, nll, entropy, _ = average_tables(part(lines))
    assert entry(ece, "tent", "ECE ↓", "floor").value == pytest.approx(0.001 * np.mean(places))
    assert entry(nll, "tent", "NLL ↓", "floor").value == pytest.approx(0.01 * np.mean(places))
    assert entry(ece, "source", "ECE ↓", "floor").value is None
    assert not entry(ece, "tent", "ECE ↓", "floor").best
    assert any(note.startswith("Floor:") for note in ece.notes)
    assert not any("floor" in head for _, head, _ in entropy.entries)


def test_estimates_are_held_against_the_true_accuracy() -> None:
    runs = ("a", 0, 0.7, 0.75, 1.0), ("a", 1, 0.8, 0.7, 0.5), ("b", 0, 0.5, 0.5, 0.9)
    lines = [
        line("poise", "rehearsed", target=target, seed=seed, accuracy=accuracy)
        | {"estimate": {"value": estimate, "low": 0.1, "high": 0.9, "covered": covered}}
        for target, seed, accuracy, estimate, covered in runs
    ]
    (table,) = estimate_tables(part([*lines, line("tent", target="a")]))
    assert {(*head,): each.value for _, head, each in table.entries} == {
        ("Off by", "on average"): pytest.approx(0.05),
        ("Off by", "at most"): pytest.approx(0.1),
        ("Too high by", "on average"): pytest.approx(-0.05 / 3),
        ("Interval right", "of all batches"): pytest.approx(0.8),
        ("Streams", ""): 3,
    }
    assert list(table.frame.index) == ["poise"]
    assert estimate_tables(part([line("tent")])) == []


def test_an_accuracy_that_a_tempering_changes_has_a_column_of_its_own() -> None:
    raw, divided = line("poise", accuracy=0.5), line("poise", "rehearsed", accuracy=0.6)
    ece, *_ = average_tables(part([raw, divided, line("tent", accuracy=0.4)]))
    assert entry(ece, "poise", "Accuracy ↑").value == 0.5
    assert entry(ece, "poise", "Accuracy ↑", "rehearsed").value == 0.6
    assert entry(ece, "tent", "Accuracy ↑", "rehearsed").value is None
    only, *_ = average_tables(part([divided, line("tent", accuracy=0.4)]))  # without a raw result
    assert entry(only, "poise", "Accuracy ↑").value == 0.6


def test_details_have_a_row_for_each_tier_and_domain() -> None:
    lines = grid("demo", "net", ["fog", "snow"], tiers=[1, 2, 3], seeds=[0, 1], labels=["source", "tent"])
    tables = list(detail_tables(part(lines)))
    assert len(tables) == 1 + 4 * 3  # accuracy once, the others for each tempering
    (table,) = [each for each in tables if each.title.endswith("ECE by tier and domain, mean of τ")]
    assert list(table.frame.index) == ["Tier 1", "Tier 2", "Tier 3", "fog", "snow"]
    at_tier = scores(lines, "ece", label="tent", tempering="mean", tier=2)
    assert entry(table, "Tier 2", "ECE ↓", "tent").value == pytest.approx(np.mean(at_tier))
    on_fog = scores(lines, "ece", label="tent", tempering="mean", target="fog")
    fog, seeds = entry(table, "fog", "ECE ↓", "tent"), np.reshape(on_fog, (3, 2)).mean(axis=0)
    assert (fog.value, fog.std) == pytest.approx((np.mean(on_fog), np.std(seeds, ddof=1)))
    for row in table.frame.index:
        both = [entry(table, row, "ECE ↓", name) for name in ("source", "tent")]
        assert [e.best for e in both] == [e.value == min(x.value or 1 for x in both) for e in both]
    assert list(detail_tables(part([line()]))) == []


def test_paired_tests_are_those_of_scipy() -> None:
    lines = grid("demo", "net", TARGETS, seeds=[0, 1])
    (table,) = comparison_tables(part(lines), None)
    assert table.title.endswith("dec against the best of the others")
    means = {
        label: np.reshape(scores(lines, "ece", label=label, tempering="none"), (4, 2)).mean(axis=1)
        for label in ("source", "tent", "eta", "t3a", "sotta")
    }
    rival = min(means, key=lambda label: means[label].mean())
    mine = np.reshape(scores(lines, "ece", label="dec", tempering="mean"), (4, 2)).mean(axis=1)
    row = f"ECE: dec (mean) minus {rival} (raw)"
    expected = stats.ttest_rel(mine, means[rival])
    assert entry(table, row, "Difference", "").value == pytest.approx((mine - means[rival]).mean())
    assert entry(table, row, "p", "t-test").value == pytest.approx(expected.pvalue)
    assert entry(table, row, "95% interval", "from").value == pytest.approx(expected.confidence_interval()[0])
    wilcoxon = stats.wilcoxon(mine, means[rival]).pvalue
    assert entry(table, row, "p", "Wilcoxon").value == pytest.approx(wilcoxon)
    assert entry(table, row, "Pairs", "").value == 4
    (other,) = comparison_tables(part(lines), "tent")
    assert all(name.split(": ")[1].startswith("tent") for name in other.frame.index)


def test_too_few_pairs_are_said() -> None:
    lines = grid("demo", "net", ["a"], seeds=[0])
    (table,) = comparison_tables(part(lines), None)
    assert any("Too few pairs" in note for note in table.notes)
    assert comparison_tables(part([line("tent"), line("source")]), None) == []


def test_numbers_as_written() -> None:
    assert [Entry(spec=".2f").written(x) for x in (0.126, 1.0, -0.001)] == ["0.13", "1.00", "0.00"]
    assert [Entry(spec=".3g").written(x) for x in (4.39e-3, 1.12e-7)] == ["0.00439", "1.12e-07"]
    assert [Entry(spec="p").written(x) for x in (0.0, 1e-15, 0.5)] == ["<1e-15", "1e-15", "0.5"]
    assert [Entry(spec="+.3f").written(x) for x in (0.1, -0.2)] == ["+0.100", "-0.200"]


def test_without_results_nothing_competes() -> None:
    assert [e.best for e in compete([None, None], "ece", ["no results"] * 2, "seeds")] == [False, False]


def test_file_names_are_plain_short_and_different() -> None:
    assert file_key("PACS, net: ECE ↓ on/average") == "PACS-net-ECE-on-average"
    one, other = file_key("x" * 300 + "1"), file_key("x" * 300 + "2")
    assert one != other
    assert len(one) == 109
