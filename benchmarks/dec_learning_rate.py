"""DEC's learning rate: which rates hold and which collapse, on Digits × SmallCNN and PACS × EfficientNet-B0.

    python benchmarks/dec_learning_rate.py OUT.jsonl --digits FOLDER
    python benchmarks/dec_learning_rate.py OUT.jsonl --pacs FOLDER --weights WEIGHTS.safetensors
    python benchmarks/dec_learning_rate.py OUT.jsonl

The Digits folder holds mnist.npz, usps.npz and svhn.npz (x_train, y_train, x_test, y_test); the PACS folder
<domain>/<class>/<image>; WEIGHTS are ImageNet weights of timm's tf_efficientnet_b0. For each held-out domain
a model is trained on the others for 5 epochs (SmallCNN: Adam 1e-3; EfficientNet-B0 at 227 px: RMSprop 2e-4,
as in the paper); then DEC makes one online pass over the held-out domain (at most 10,000 images) in batches
of 50 at each rate, and predicts it again afterwards. A line of JSON for each run; runs that OUT already has
are not made again. Without a data set it prints what OUT has, as tables in Markdown. On a GPU a seed of PACS
takes five minutes.
"""

from typing import Any

import numpy as np
import torch
from shifts import METRICS, Shift, Store, arguments, scores, shifts

import equipoise as eq

RUNS: list[dict[str, Any]] = [
    {"method": "source"},
    *(
        {"method": "dec", "reading": reading, "learning_rate": rate, "tempering": tempering}
        for reading, rates in {"paper": (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 0.0), "released": (1e-3,)}.items()
        for rate in rates
        for tempering in ("mean", "median")
    ),
]


def adapt(shift: Shift, source: eq.SourceStatistics | None, options: dict[str, Any]) -> dict[str, Any]:
    """One pass online, then the prediction after it."""
    adapter = eq.create(options.pop("method"), shift.model, source, **options)
    batches, labels = shift.stream()
    answers, temperatures = [], []
    for x in batches:
        answers.append(adapter(x))
        temperatures.append(adapter.last.temperature if adapter.last else None)
    after = torch.cat([adapter.predict(x) for x in batches])
    return {
        "online": scores(torch.cat(answers), labels),
        "after_pass": scores(after, labels),
        "hottest_batch": max((t for t in temperatures if t is not None), default=None),
    }


def worst_loss(runs: list[dict[str, Any]], still: list[dict[str, Any]], protocol: str) -> float:
    """The most accuracy that any one model lost against the same model at rate 0."""
    at_zero = {(line["seed"], line["target"]): line[protocol]["accuracy"] for line in still}
    losses = [run[protocol]["accuracy"] - at_zero[run["seed"], run["target"]] for run in runs]
    return float(min(losses))


def show(lines: list[dict[str, Any]]) -> None:
    """A table for each data set and protocol: accuracy by domain, then the means over domains and seeds."""
    for data in dict.fromkeys(line["data"] for line in lines):
        ours = [line for line in lines if line["data"] == data]
        targets = list(dict.fromkeys(line["target"] for line in ours))
        seeds = {
            target: len({line["seed"] for line in ours if line["target"] == target}) for target in targets
        }
        for protocol in ("online", "after_pass"):
            print(f"\n{data}, {protocol}; models a domain: {seeds}\n")
            heads = [
                "run",
                *(f"acc {target}" for target in targets),
                "acc",
                "ECE",
                "entropy",
                "NLL",
                "worst model against rate 0",
            ]
            print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
            for options in RUNS:
                runs = [line for line in ours if line["options"] == options]
                if not runs:
                    continue
                each = [
                    {
                        k: float(np.mean([r[protocol][k] for r in runs if r["target"] == target]))
                        for k in METRICS
                    }
                    for target in targets
                ]
                name = " ".join(str(value) for value in options.values())
                cells = [f"{score['accuracy']:.3f}" for score in each]
                cells += [f"{np.mean([score[k] for score in each]):.3f}" for k in METRICS]
                still = [line for line in ours if line["options"].get("learning_rate") == 0.0]
                cells.append(f"{worst_loss(runs, still, protocol):+.3f}")
                print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    """Train, adapt and write a line a run."""
    args = arguments(__doc__ or "")
    store = Store(args.out)
    for data, shift in shifts(args):
        place = {"data": data, "seed": shift.seed, "target": shift.target}
        wanted = [run for run in RUNS if not store.has({**place, "options": run})]
        source = shift.measured() if wanted else None
        for options in wanted:
            store.add({**place, "options": options, **adapt(shift, source, dict(options))})
    if not (args.digits or args.pacs):
        show(store.lines)


if __name__ == "__main__":
    main()
