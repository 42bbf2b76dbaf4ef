"""Writes docs/results.md from its template and the results beside this file.

python -m benchmarks.results.page docs/results.md
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import (
    bar,
    causes,
    claims,
    estimates,
    extent,
    robustness,
    significant,
    sources,
    summary,
    temperatures,
)
from benchmarks.results.bar import Decision
from benchmarks.results.domains import domain_tables
from benchmarks.results.full_tables import doubts, full_tables
from benchmarks.results.measured import POISE, SOURCE, Measured, read
from benchmarks.results.wording import filled, folded
from equipoise.files import whole_file

HERE = Path(__file__).parent


def parts(measured: Measured) -> dict[str, Any]:
    """Everything that the template names."""
    cells, made = measured.cells, bar.decisions(measured)
    return {
        "summary": summary.summary_table(cells),
        "source_right_says": summary.right_and_says(cells, SOURCE),
        "poise_right_says": summary.right_and_says(cells, POISE),
        "ece_factors": summary.factors_of_ece(cells),
        "lower": summary.lower(cells),
        "apart": summary.apart(cells),
        "models_that_lost": summary.models_that_lost(cells),
        "hardly_learn": summary.hardly_learn(cells),
        "beyond_rivals": bar.beyond_rivals(cells),
        "against_dec": summary.against_dec(cells),
        "goals_reached": bar.count(made),
        "causes": causes.causes(measured, made),
        "goals": bar.goal_table(made),
        **_bar_tables(measured, made),
        "runs": extent.run_table(cells),
        "gaps": extent.gaps(measured),
        "machines": extent.machines(cells),
        "rehearsals": extent.rehearsals(cells),
        "domains": domain_tables(cells),
        "estimates": estimates.estimate_table(cells),
        "estimate_verdict": estimates.estimate_verdict(cells),
        "robustness": robustness.robustness_tables(measured.robust),
        "robust_verdict": robustness.verdict(measured.robust),
        "collapses": robustness.collapse_table(measured.robust),
        "robust_estimates": robustness.estimate_verdict(measured.robust),
        "tent_verdict": robustness.tent_verdict(measured.robust),
        "robust_images": robustness.images(measured.robust),
        "tests": _tests(measured),
        "temperatures": temperatures.temperature_table(cells),
        "mean_or_median": temperatures.mean_or_median(cells),
        "median_or_rehearsed": temperatures.median_or_rehearsed(cells),
        "claims": _claims(measured),
        "source_accuracy": sources.accuracy_table(cells),
        "near_paper": sources.near_paper(cells),
        "trained": sources.training_count(measured.training),
        "training_verdicts": sources.training_verdicts(measured.training),
        "training": sources.training_tables(measured.training),
        "doubts": doubts(cells),
        "full_tables": full_tables(cells),
    }


def _bar_tables(measured: Measured, made: Sequence[Decision]) -> dict[str, str]:
    """The numbers behind the goals."""
    heads = {
        "bar_ece": {"ece": "ECE of `poise`", "third": "against the best raw rival"},
        "bar_nll": {
            "nll": "NLL of `poise` against the best rival, raw or by tau",
            "nll-rehearsed": "against the best rehearsed rival",
        },
        "bar_accuracy": {
            "accuracy": "accuracy of `poise` against the best rival",
            "domain": "worst domain, against no adaptation",
        },
    }
    made_tables = {name: bar.decision_table(made, goals) for name, goals in heads.items()}
    return made_tables | {"bar_paper": bar.against_paper(measured.cells, made)}


def _tests(measured: Measured) -> dict[str, dict[str, str]]:
    """A verdict and a folded table for each family of tests."""
    return {
        name: {
            "verdict": significant.test_verdict(tests),
            "table": folded(significant.FAMILIES[name], significant.test_table(tests)),
        }
        for name, tests in significant.families(measured.cells).items()
    }


def _claims(measured: Measured) -> dict[str, str]:
    """The verdicts and tables of the paper's claims."""
    cells, streams = measured.cells, measured.streams
    return {
        "certainty_verdict": claims.certainty_verdict(cells),
        "certainty": claims.certainty_table(cells),
        "source_ece": claims.over_certain_source(cells),
        "norm_verdict": claims.norm_verdict(streams),
        "norms": claims.norm_table(streams),
        "accuracy_verdict": claims.accuracy_verdict(cells),
        "accuracy": claims.accuracy_table(cells),
        "fixed_verdict": claims.fixed_verdict(cells),
    }


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the file of the page")
    parser.add_argument("--folder", type=Path, default=HERE)
    given = parser.parse_args()
    template = (HERE / "results.template.md").read_text(encoding="utf-8")
    text = filled(template, parts(read(given.folder)))
    with whole_file(given.out) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
