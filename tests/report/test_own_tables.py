from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.report.numbers.significance import paired_test
from equipoise.report.tables.own_tables import (
    average_tables,
    comparisons,
    detail_tables,
    own_tables,
    significance_tables,
)
from tests.report.reading import one, read, row, scores
from tests.report.writer import grid, line

DEMO = ["mnist", "optical", "rendered"]
METRICS = ["accuracy", "ece", "nll", "entropy", "brier"]


def test_the_average_has_every_method_and_tempering_with_five_metrics(tmp_path: Path) -> None:
    lines = grid("demo", "smallcnn", DEMO, labels=["dec", "source"], temperings=["fixed", "none"], epochs=4)
    (table,) = average_tables(read(tmp_path, lines), "online")
    assert table.key == "demo-smallcnn-average-online-epochs4"
    assert table.title == (
        "demo, SmallCNN (all images, 4 epochs): every method and tempering, average over 3 domains"
    )
    assert [each.label for each in table.rows] == [
        "source (raw)",
        "source (fixed)",
        "dec (raw)",
        "dec (fixed)",
    ]
    for label in ("source", "dec"):
        for tempering, name in (("none", "raw"), ("fixed", "fixed")):
            for position, metric in enumerate(METRICS):
                found = scores(lines, metric, label=label, tempering=tempering)
                assert row(table, f"{label} ({name})")[position].ours == pytest.approx(np.mean(found))
    assert all(entry.printed is None and not entry.missing for each in table.rows for entry in each.entries)
    assert table.notes[0] == "All images, 4 epochs. Means over the seeds 0, 1 and 2."
    spreads = [
        np.std(
            np.reshape(scores(lines, "nll", label=label, tempering=tempering), (3, 3)).mean(axis=0), ddof=1
        )
        for label in ("source", "dec")
        for tempering in ("none", "fixed")
    ]
    assert any(f"NLL {max(spreads):.3f}" in note for note in table.notes)


def test_the_best_is_marked_in_the_right_direction(tmp_path: Path) -> None:
    lines = [
        line("source", accuracy=0.5, ece=0.1, nll=2.0, entropy=1.0, brier=0.5),
        line("tent", accuracy=0.7, ece=0.30004, nll=1.0, entropy=0.1, brier=0.5001),
        line("dec", accuracy=0.6, ece=0.3, nll=1.5, entropy=2.0, brier=0.7),
    ]
    (table,) = average_tables(read(tmp_path, lines), "online")
    marks = {each.label: [entry.best for entry in each.entries] for each in table.rows}
    assert marks == {
        "source (raw)": [False, True, False, False, True],
        "tent (raw)": [True, False, True, False, True],  # 0.5001 is written as 0.500, too
        "dec (raw)": [False] * 5,
    }


def test_one_method_alone_is_not_the_best_of_anything(tmp_path: Path) -> None:
    (table,) = average_tables(read(tmp_path, [line()]), "online")
    assert not any(entry.best for entry in table.rows[0].entries)


def test_only_numbers_of_the_same_runs_compete_and_those_of_most_rows(tmp_path: Path) -> None:
    lines = [line("source", ece=0.2), line("tent", ece=0.3)]
    lines += [line("dec", seed=seed, ece=0.1) for seed in (0, 1)]
    lines += [line("eta", target=target, ece=0.2) for target in ("photo", "sketch")]
    (table,) = average_tables(read(tmp_path, lines), "online")
    names = ("source (raw)", "tent (raw)", "dec (raw)", "eta (raw)")
    assert [row(table, name)[1].best for name in names] == [True, False, False, False]
    assert row(table, "source (raw)")[1].missing == "1 of 2 domains, 1 of 2 seeds"


def test_by_domain_a_table_for_each_metric(tmp_path: Path) -> None:
    lines = grid("demo", "smallcnn", DEMO, labels=["dec", "source"], temperings=["none", "mean"])
    tables = detail_tables(read(tmp_path, lines), "online")
    assert [table.key for table in tables] == [
        f"demo-smallcnn-domain-{name}-online-epochs15" for name in METRICS
    ]
    table = tables[1]
    assert [column.heading for column in table.columns] == DEMO
    for position, target in enumerate(DEMO):
        found = scores(lines, "ece", label="dec", tempering="mean", target=target)
        assert row(table, "dec (mean)")[position].ours == pytest.approx(np.mean(found))
        assert row(table, "dec (mean)")[position].ours_std is None
    accuracy = tables[0]
    assert [each.label for each in accuracy.rows] == ["source", "dec"]
    assert "Rows that dividing the logits does not change are shown once." in accuracy.notes
    assert not any("shown once" in note for note in table.notes)


def test_rows_that_differ_are_all_shown(tmp_path: Path) -> None:
    lines = [
        line(target=target, tempering=tempering, accuracy=accuracy)
        for target in DEMO
        for tempering, accuracy in (("none", 0.5), ("mean", 0.5), ("median", 0.6))
    ]
    table = detail_tables(read(tmp_path, lines), "online")[0]
    assert [each.label for each in table.rows] == ["source (raw)", "source (median)"]


def test_with_tiers_by_domain_over_tiers_and_by_tier_over_domains(tmp_path: Path) -> None:
    lines = grid("cifar", "net", ["fog", "snow"], tiers=[1, 3, 5], labels=["tent"], temperings=["none"])
    results = read(tmp_path, lines)
    tables = detail_tables(results, "online")
    assert len(tables) == 10
    by_domain, by_tier = (one(tables, f"cifar-net-{kind}-ece-online-epochs15") for kind in ("domain", "tier"))
    for position, target in enumerate(["fog", "snow"]):
        assert row(by_domain, "tent (raw)")[position].ours == pytest.approx(
            np.mean(scores(lines, "ece", target=target))
        )
    for position, tier in enumerate([1, 3, 5]):
        means = np.reshape(scores(lines, "ece", tier=tier), (2, 3)).mean(axis=1)
        entry = row(by_tier, "tent (raw)")[position]
        assert entry.ours == pytest.approx(means.mean())
        assert entry.ours_std == pytest.approx(means.std(ddof=1))
        assert by_tier.columns[position].heading == f"Tier {tier}"
    (average,) = average_tables(results, "online")
    assert average.title.endswith("average over 6 shifts")


def test_one_domain_needs_no_table_by_domain(tmp_path: Path) -> None:
    assert detail_tables(read(tmp_path, [line(), line("tent")]), "online") == []


def test_gaps_are_told(tmp_path: Path) -> None:
    lines = grid("demo", "smallcnn", DEMO, labels=["tent", "source"], temperings=["none"])
    lines = [each for each in lines if each["cell"]["label"] == "source" or each["cell"]["target"] != "mnist"]
    results = read(tmp_path, lines)
    (table,) = average_tables(results, "online")
    assert row(table, "tent (raw)")[0].missing == "2 of 3 domains"
    assert "‡ Only 2 of 3 domains: tent (raw)." in table.notes
    first = detail_tables(results, "online")[0]
    entry = row(first, "tent (raw)")[DEMO.index("mnist")]
    assert (entry.ours, entry.missing) == (None, "no results")


def test_variants_of_a_label_are_told(tmp_path: Path) -> None:
    lines = [line("tent", batch_size=8), line("tent", batch_size=9)]
    (table,) = average_tables(read(tmp_path, lines), "online")
    assert [each.label for each in table.rows] == ["tent [batch_size=8] (raw)", "tent [batch_size=9] (raw)"]
    assert "Give each a label of its own in the recipe." in table.notes[-1]


def test_paired_tests_in_the_papers_form_and_divided_alike(tmp_path: Path) -> None:
    lines = grid("demo", "smallcnn", DEMO, labels=["tent", "source", "dec"], temperings=["none", "mean"])
    results = read(tmp_path, lines)
    (table,) = significance_tables(results, "online")
    assert table.key == "demo-smallcnn-significance-dec-online-epochs15"

    def means(label: str, tempering: str, metric: str) -> list[float]:
        found = scores(lines, metric, label=label, tempering=tempering)
        return [float(mean) for mean in np.reshape(found, (3, 3)).mean(axis=1)]

    def best(tempering: str, metric: str) -> str:
        pick = max if metric == "accuracy" else min
        return pick(("tent", "source"), key=lambda label: sum(means(label, tempering, metric)))

    expected = [
        (metric, variant, rivals)
        for metric, variant, rivals in (
            ("ece", "mean", "none"),
            ("nll", "mean", "none"),
            ("accuracy", "mean", "none"),
            ("ece", "none", "none"),
            ("nll", "none", "none"),
            ("ece", "mean", "mean"),
            ("nll", "mean", "mean"),
        )
    ]
    assert len(table.rows) == len(expected)
    names = {"ece": "ECE", "nll": "NLL", "accuracy": "accuracy", "none": "raw", "mean": "mean"}
    for each, (metric, variant, rivals) in zip(table.rows, expected, strict=True):
        rival = best(rivals, metric)
        assert each.label == f"{names[metric]}: dec ({names[variant]}) minus {rival} ({names[rivals]})"
        test = paired_test(means("dec", variant, metric), means(rival, rivals, metric))
        values = [entry.ours for entry in each.entries]
        assert values == pytest.approx([3, test.difference, test.low, test.high, test.t_p, test.wilcoxon_p])
    assert not any("Too few" in note for note in table.notes)


def test_too_few_pairs_are_told(tmp_path: Path) -> None:
    lines = grid("demo", "smallcnn", DEMO[:2], labels=["tent", "dec"], temperings=["none", "mean"])
    (table,) = significance_tables(read(tmp_path, lines), "online")
    first = table.rows[0].entries
    assert [entry.ours is None for entry in first] == [False, False, True, True, True, True]
    assert {entry.missing for entry in first[2:]} == {"too few pairs"}
    assert any(note.startswith("Too few pairs: at least 3 shifts") for note in table.notes)


def test_dec_is_tested_without_the_papers_form_of_it(tmp_path: Path) -> None:
    lines = grid("demo", "smallcnn", DEMO, labels=["tent", "dec"], temperings=["median"])
    results = read(tmp_path, lines)
    (table,) = significance_tables(results, "online")
    assert [each.label for each in table.rows] == [
        "accuracy: dec (median) minus tent (median)",
        "ECE: dec (median) minus tent (median)",
        "NLL: dec (median) minus tent (median)",
    ]
    (scores,) = results.variant_scores.values()
    assert [each.metric for each in comparisons(scores)] == ["accuracy", "ece", "nll"]


def test_without_dec_nothing_is_tested(tmp_path: Path) -> None:
    lines = grid("demo", "smallcnn", DEMO, labels=["tent", "sotta"], temperings=["median"])
    assert significance_tables(read(tmp_path, lines), "online") == []


def test_tiers_are_said_not_to_be_independent(tmp_path: Path) -> None:
    lines = grid("cifar", "net", ["fog"], tiers=[1, 2, 3], labels=["tent", "dec"], temperings=["mean"])
    (table,) = significance_tables(read(tmp_path, lines), "online")
    assert any("not independent" in note for note in table.notes)
    assert table.rows[0].entries[0].ours == 3


def test_own_tables_are_those_of_a_group_after_each_other(tmp_path: Path) -> None:
    lines = grid("demo", "smallcnn", DEMO, seeds=[0])
    lines += grid("demo", "smallcnn", DEMO, seeds=[0], limit=50)
    lines += grid("demo", "smallcnn", DEMO, seeds=[0], protocol="after-pass")
    results = read(tmp_path, lines)
    tables = own_tables(results, "online")
    kinds = [
        "average",
        "significance-dec",
        *(f"domain-{metric}" for metric in METRICS),
    ]
    assert [table.key for table in tables] == [
        f"demo-smallcnn-{kind}-online-{setting}"
        for setting in ("epochs15", "limit50-epochs15")
        for kind in kinds
    ]
    assert {table.protocol for table in own_tables(results, "after-pass")} == {"after-pass"}
    parts = [
        *average_tables(results, "online"),
        *significance_tables(results, "online"),
        *detail_tables(results, "online"),
    ]
    assert sorted(parts, key=lambda table: table.key) == sorted(tables, key=lambda table: table.key)


def test_keys_are_different_for_different_settings_and_safe_for_files(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"limit": 5},
        {"epochs": 3},
        {"input_size": 227},
        {"order": "sorted"},
        {"backbone": "a/b c"},
        {"protocol": "after-pass"},
    ]
    results = read(tmp_path, [line(**change) for change in changes])
    keys = [table.key for protocol in results.protocols() for table in average_tables(results, protocol)]
    assert len(set(keys)) == 7
    assert "pacs-efficientnet_b0-average-online" in keys
    assert "pacs-a-b-c-average-online" in keys
    assert "pacs-efficientnet_b0-average-online-227px" in keys
