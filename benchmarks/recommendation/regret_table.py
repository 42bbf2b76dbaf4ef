"""Regret of rules of choice, as Markdown: recommendations against the accuracies of a comparison.

    python -m benchmarks.recommendation.regret_table RECOMMENDATIONS.csv … --results OUT …

RECOMMENDATIONS.csv are files of `recommendations.py`. Each OUT is a folder of `equipoise run` (its
results.jsonl), or a CSV file with the columns data, backbone, target, tier, seed, stream, label, tempering
and accuracy. The regret of a choice for a run (a model in a stream) is the accuracy of the best of the
tried methods in that stream less that of the chosen one. `--by data stream` divides the tables further.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks import pages
from benchmarks.recommendation.rules import RULES
from equipoise.recommendation.candidates import Candidate, candidates
from equipoise.recommendation.choice import Form, ShiftSums, most_honest

RUN = ["data", "backbone", "target", "seed", "stream"]
RUN_AND_TIER = [*RUN, "tier"]
"""The columns that name a stream of the comparison: a recommendation is for all tiers."""
ALWAYS = {
    "tent": "always `tent`",
    "cotta": "always `cotta`",
    "bn_alpha": "always `bn_alpha`",
    "poise": "always `poise`",
    "source": "never adapting",
}
"""The methods that are held against the recommendation, those of them that were run."""
LABELS = {"roid(prior_correction=True)": "roid-prior"}
"""Labels in recipes of methods of the short lists that have options."""
NEAR = 0.01


def read_results(paths: Iterable[Path]) -> pd.DataFrame:
    """The accuracy of each label in each run: a row for each run, a column for each label.

    It is that of a method as it is deployed, with its rehearsal where it has one.
    """
    return deployed(pd.concat([_of_folder(path) if path.is_dir() else pd.read_csv(path) for path in paths]))


def deployed(rows: pd.DataFrame) -> pd.DataFrame:
    """The accuracies of methods with their rehearsals, where they have one, from rows of both temperings."""
    rows = rows[rows["tempering"].isin(["none", "rehearsed"])].sort_values("tempering", kind="stable")
    rows = rows.assign(tier=rows["tier"].fillna(0).astype(int))
    return rows.pivot_table(index=RUN_AND_TIER, columns="label", values="accuracy", aggfunc="last")


def _of_folder(folder: Path) -> pd.DataFrame:
    rows = []
    for line in (folder / "results.jsonl").read_text().splitlines():
        result = json.loads(line)
        cell = result["cell"]
        if result["status"] == "ok" and cell["protocol"] == "online":
            kept = ("data", "backbone", "target", "tier", "seed", "label", "tempering")
            own = {name: cell[name] for name in kept}
            rows.append({**own, "stream": cell["order"], "accuracy": result["scores"]["accuracy"]})
    return pd.DataFrame(rows)


def _grouped(rows: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    yield from rows.groupby(list(by), sort=False)


def forms_of(rows: pd.DataFrame) -> list[Form]:
    """The forms of the methods that were tried for one run; their names are labels."""
    found = []
    for (label, tempering), part in _grouped(rows, ["label", "tempering"]):
        counts, hits, losses = (
            torch.tensor(part[name].tolist(), dtype=torch.float64) for name in ("samples", "correct", "nll")
        )
        sums = ShiftSums(counts, hits, losses, calibration_error=0.0)
        found.append(Form(Candidate(label), tempering, sums, float(part["seconds"].iloc[0])))
    return found


def short_list(stream: Any) -> set[str]:
    """The labels of the methods that `recommend` tries by default for a kind of stream."""
    return {LABELS.get(str(one), str(one)) for one in candidates(None, stream)}


def chosen_labels(rows: pd.DataFrame, results: pd.DataFrame, *, short: bool) -> pd.DataFrame:
    """The label that each rule chooses, a column for each; a row for each run that both files have.

    A run for which a method failed for want of memory is left out: no rule could choose it.

    Args:
        rows: the recommendations.
        results: the accuracies of `read_results`.
        short: whether a rule has the short list of the stream alone, and not all methods.
    """
    answered = rows[rows["samples"] > 0]
    found: dict[Any, dict[str, str]] = {}
    recommended = {run: part for run, part in _grouped(answered, RUN) if run not in out_of_memory(rows)}
    for *run, tier in results.index:
        part = recommended.get(tuple(run))
        if part is not None:
            known = set(results.loc[(*run, tier)].dropna().index) & set(part["label"])
            known &= short_list(run[-1]) if short else known
            forms = most_honest([form for form in forms_of(part) if form.candidate.name in known])
            choices = {name: rule(list(forms.values())) for name, rule in RULES.items()}
            found[(*run, tier)] = {name: form.candidate.name for name, form in choices.items()}
    if not found:
        raise SystemExit("no run is in both the recommendations and the results")
    return pd.DataFrame(
        list(found.values()), index=pd.MultiIndex.from_tuples(list(found), names=RUN_AND_TIER)
    )


def out_of_memory(rows: pd.DataFrame) -> set[tuple[Any, ...]]:
    """The runs of recommendations in which a method found no memory."""
    short_of = (
        rows[rows["problem"].astype(str).str.contains("OutOfMemory")] if "problem" in rows else rows[:0]
    )
    return set(map(tuple, short_of[RUN].to_numpy().tolist()))


def accuracies_of(chosen: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """The accuracy of each rule in each run, and of the methods that are always taken."""
    known = results.to_dict("index")
    found = pd.DataFrame(index=chosen.index)
    for rule in chosen:
        found[rule] = [known[run][label] for run, label in chosen[rule].items()]
    for label, name in ALWAYS.items():
        if label in results:
            found[name] = results.loc[chosen.index, label]
    return found


def table(accuracies: pd.DataFrame, results: pd.DataFrame, tried: Sequence[str]) -> str:
    """For each rule: runs within .01 of the best of these methods, mean and worst regret, harmed runs."""
    here = results.loc[accuracies.index]
    best, source = here[list(tried)].max(axis=1), here["source"]
    body = []
    for rule, accuracy in accuracies.items():
        regret, harm = best - accuracy, (accuracy < source - NEAR).mean()
        near = (regret <= NEAR).mean()
        body.append([str(rule), f"{near:.0%}", f"{regret.mean():.3f}", f"{regret.max():.3f}", f"{harm:.0%}"])
    head = ["rule", f"within {NEAR:g} of the best", "mean regret", "worst regret", f"{NEAR:g} below `source`"]
    return pages.table(head, body, narrow=True)


def report(rows: pd.DataFrame, results: pd.DataFrame, by: Sequence[str]) -> str:
    """The tables of all runs and of each group of them, with all methods and with the short lists."""
    tried, parts = [label for label in dict.fromkeys(rows["label"]) if label in results], []
    for short in (False, True):
        parts.append(f"## {'The short list of each stream' if short else 'All methods that were tried'}")
        accuracies = accuracies_of(chosen_labels(rows, results, short=short), results)
        groups = {"all": accuracies}
        groups |= {" ".join(map(str, name)): part for name, part in _grouped(accuracies, by)}
        for name, part in groups.items():
            here = results.loc[part.index]
            more = (here.max(axis=1) - here[tried].max(axis=1)).mean()
            best = f"Best of all {len(here.columns)} methods: {more:.3f} above the best of those tried."
            parts += [f"{name}, {len(part)} runs:", table(part, results, tried), best]
    return "\n\n".join(parts)


def choices(rows: pd.DataFrame, results: pd.DataFrame) -> str:
    """What `recommend` and the rules choose of all methods, and what was best, for each run."""
    chosen = chosen_labels(rows, results, short=False)
    here = results.loc[chosen.index, [label for label in dict.fromkeys(rows["label"]) if label in results]]
    chosen["best"] = here.idxmax(axis=1)
    return str(chosen.reset_index().to_markdown(index=False))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recommendations", nargs="+", type=Path)
    parser.add_argument("--results", nargs="+", type=Path, required=True)
    parser.add_argument("--by", nargs="+", default=["data"], choices=RUN, help="what divides the tables")
    parser.add_argument("--choices", action="store_true", help="print what is chosen for each run, too")
    given = parser.parse_args()
    rows = pd.concat([pd.read_csv(path) for path in given.recommendations])
    results = read_results(given.results)
    print(report(rows, results, given.by))
    if given.choices:
        print("", choices(rows, results), sep="\n")


if __name__ == "__main__":
    main()
