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

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import equipoise as eq
from equipoise.metrics import accuracy, entropy, expected_calibration_error, negative_log_likelihood

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
METRICS = ("accuracy", "ece", "entropy", "nll")
RUNS: list[dict[str, Any]] = [
    {"method": "source"},
    *(
        {"method": "dec", "reading": reading, "learning_rate": rate, "tempering": tempering}
        for reading, rates in {"paper": (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 0.0), "released": (1e-3,)}.items()
        for rate in rates
        for tempering in ("mean", "median")
    ),
]


Domains = dict[str, tuple[Tensor, Tensor]]


class EfficientNet(nn.Module):
    """EfficientNet-B0 with its preprocessing inside: takes raw 0-255 images."""

    mean: Tensor
    std: Tensor

    def __init__(self, weights: dict[str, Tensor], classes: int) -> None:
        super().__init__()
        self.backbone = timm.create_model("tf_efficientnet_b0", num_classes=classes)
        body = {name: t.float() for name, t in weights.items() if not name.startswith("classifier.")}
        missing, unexpected = self.backbone.load_state_dict(body, strict=False)
        if unexpected or not all(name.startswith("classifier.") for name in missing):
            raise ValueError(f"weights do not fit: missing {missing}, unexpected {unexpected}")
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1) * 255)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of raw images."""
        logits: Tensor = self.backbone((images - self.mean) / self.std)
        return logits


def read_digits(folder: Path, device: str) -> Domains:
    """MNIST, USPS and SVHN, training and test images together, as 32-pixel grey images."""
    domains = {}
    for name in ("mnist", "usps", "svhn"):
        with np.load(folder / f"{name}.npz") as arrays:
            x = torch.from_numpy(np.concatenate([arrays["x_train"], arrays["x_test"]]))
            y = torch.from_numpy(np.concatenate([arrays["y_train"], arrays["y_test"]]))
        x = nn.functional.interpolate(x.float().unsqueeze(1), size=(32, 32), mode="bilinear")
        domains[name] = (x.round().to(torch.uint8).to(device), y.long().to(device))
    return domains


def read_pacs(folder: Path, device: str) -> Domains:
    """Every domain as uint8 images and labels, in memory."""
    domains = {}
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    classes = sorted(path.name for path in (folder / names[0]).iterdir() if path.is_dir())
    for domain in names:
        files = [
            (file, k) for k, name in enumerate(classes) for file in sorted((folder / domain / name).iterdir())
        ]

        def pixels(entry: tuple[Path, int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
            return np.asarray(Image.open(entry[0]).convert("RGB").resize((227, 227)))

        with ThreadPoolExecutor(16) as pool:
            images = np.stack(list(pool.map(pixels, files)))
        domains[domain] = (
            torch.from_numpy(images).permute(0, 3, 1, 2).to(device),
            torch.tensor([k for _, k in files], device=device),
        )
    return domains


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """The paper's optimisers (Adam for SmallCNN, else RMSprop at 2e-4) in mixed precision."""
    model.to(x.device).train()
    optimiser: torch.optim.Optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-4, alpha=0.9, eps=1e-7)
    if isinstance(model, eq.models.SmallCNN):
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device=x.device).split(64):
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x[rows].float()), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


def scores(logits: Tensor, target: Tensor) -> dict[str, float]:
    """The paper's four numbers."""
    return {
        "accuracy": float(accuracy(logits=logits, target=target)),
        "ece": float(expected_calibration_error(logits=logits, target=target)),
        "entropy": float(entropy(logits=logits)),
        "nll": float(negative_log_likelihood(logits=logits, target=target)),
    }


def adapt(
    model: nn.Module, source: eq.SourceStatistics, x: Tensor, y: Tensor, options: dict[str, Any]
) -> dict[str, Any]:
    """One pass online, then the prediction after it."""
    adapter = eq.create(options.pop("method"), model, source, **options)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:10_000].to(x.device)
    batches = order.split(50)
    answers, temperatures = [], []
    for rows in batches:
        answers.append(adapter(x[rows].float()))
        temperatures.append(adapter.last.temperature if adapter.last else None)
    after = torch.cat([adapter.predict(x[rows].float()) for rows in batches])
    return {
        "online": scores(torch.cat(answers), y[order]),
        "after_pass": scores(after, y[order]),
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--digits", type=Path)
    parser.add_argument("--pacs", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(line["data"], line["seed"], line["target"], json.dumps(line["options"])) for line in lines}
    if args.digits:
        data, domains = "digits", read_digits(args.digits, args.device)
    elif args.pacs and args.weights:
        data, domains = "pacs", read_pacs(args.pacs, args.device)
        weights = load_file(args.weights)
    else:
        show(lines)
        return
    for seed in args.seeds:
        for target, (x, y) in domains.items():
            wanted = [run for run in RUNS if (data, seed, target, json.dumps(run)) not in done]
            if not wanted:
                continue
            torch.manual_seed(seed)
            source_x = torch.cat([images for name, (images, _) in domains.items() if name != target])
            source_y = torch.cat([labels for name, (_, labels) in domains.items() if name != target])
            fresh = eq.models.SmallCNN() if data == "digits" else EfficientNet(weights, int(y.max()) + 1)
            model = train(fresh, source_x, source_y, args.epochs)
            source = eq.SourceStatistics.measure(
                model, (b.float() for b in source_x.split(200)), progress=False
            )
            for options in wanted:
                line = {"data": data, "seed": seed, "target": target, "options": options}
                line |= adapt(model, source, x, y, dict(options))
                with args.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
