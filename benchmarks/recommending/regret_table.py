"""The table of `regret.py`'s measurements, as Markdown.

python benchmarks/recommending/regret_table.py benchmarks/recommending/digits.csv
"""

import sys
from pathlib import Path

import pandas as pd

SETTING = ["data", "backbone", "target", "seed", "stream", "domains"]
RULES = {
    "recommended": "the recommendation",
    "tent": "always `tent`",
    "poise": "always `poise`",
    "source": "never adapting",
}
NEAR = 0.01


def regrets(rows: pd.DataFrame) -> pd.DataFrame:
    """The accuracy of the best method in hindsight less that of each rule; a row for each complete setting.

    A setting is complete if it has as many methods as any other.
    """
    wide = rows.pivot_table(index=SETTING, columns="method", values="accuracy")
    wide = wide[wide.notna().all(axis=1)]
    best = wide.drop(columns="recommended").max(axis=1)
    return pd.DataFrame({name: best - wide[rule] for rule, name in RULES.items()}, index=wide.index)


def table(rows: pd.DataFrame) -> str:
    """For each kind of stream and for all: the share within .01, the mean and the worst regret."""
    found = regrets(rows)
    parts = [("all", found), *((f"`{kind}`", part) for kind, part in found.groupby("stream", sort=False))]
    lines = [
        f"| stream | models | {' | '.join(found.columns)} |",
        f"|---|---|{'---|' * len(found.columns)}",
    ]
    for name, part in parts:
        cells = [
            f"{(part[rule] <= NEAR).mean():.0%}, {part[rule].mean():.3f}, {part[rule].max():.3f}"
            for rule in found.columns
        ]
        lines.append(f"| {name} | {len(part)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def choices(rows: pd.DataFrame) -> str:
    """What was recommended, and what was best, for each complete setting."""
    complete = regrets(rows).index
    lines = ["| stream | target, seed | recommended | its accuracy | best in hindsight | its accuracy |"]
    lines.append("|---|---|---|---|---|---|")
    for setting, part in rows.groupby(SETTING, sort=False):
        if setting not in complete:
            continue
        own, others = part[part["method"] == "recommended"], part[part["method"] != "recommended"]
        best, mine = others.sort_values("accuracy").iloc[-1], own.iloc[0]
        named = dict(zip(SETTING, setting, strict=True))
        lines.append(
            f"| `{named['stream']}` | {named['target']}, {named['seed']} | `{mine['choice']}` | "
            f"{mine['accuracy']:.3f} | `{best['method']}` | {best['accuracy']:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print both tables."""
    rows = pd.read_csv(Path(sys.argv[1]), keep_default_na=False)
    print("Cells: share of settings within .01 of the best in hindsight, mean regret, worst regret.\n")
    print(table(rows), "\n", choices(rows), sep="\n")


if __name__ == "__main__":
    main()
