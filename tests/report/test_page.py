"""The whole page: what is on it for results of every kind, and that it needs nothing else."""

import re
import time
from itertools import pairwise
from typing import Any, cast

import pytest

from equipoise.report.figures.sections import sections
from equipoise.report.numbers.results import RunResults
from equipoise.report.page.page import report_page
from equipoise.report.page.run import progress
from tests.report import plausible
from tests.report.drawn import Parsed
from tests.report.plausible import made
from tests.report.writer import line, stream_line

HOSTILE = "<script>alert('x')</script> & \"co\""


class Page(Parsed):
    """The page of results, parsed once."""

    def __init__(self, results: RunResults) -> None:
        self.html = report_page(results)
        super().__init__(self.html)

    @property
    def text(self) -> str:
        return self.all("body")[0].text


SMALL = plausible.sweep(seeds=(0,), labels=("source", "dec"))
TIERS: dict[str, Any] = {"tiers": (1, 2, 3), "epochs": 25, "input_size": 256, "seeds": (0,)}


@pytest.fixture(scope="module")
def pacs() -> Page:
    return Page(plausible.results(plausible.sweep(seeds=(0, 1))))


@pytest.fixture(scope="module")
def tiers() -> Page:
    both = (
        plausible.sweep("tiny-imagenet-c", network, ("fog", "snow"), **TIERS)
        for network in ("efficientnet_b0", "mobilenet_v1")
    )
    return Page(plausible.results(*both))


@pytest.fixture(scope="module", params=["pacs", "tiers"])
def page(request: pytest.FixtureRequest) -> Page:
    return cast("Page", request.getfixturevalue(request.param))


def test_nothing_is_fetched_and_nothing_runs(page: Page) -> None:
    assert not {each.tag for each in page.elements} & {"script", "link", "iframe", "img", "object"}
    links = [each.attributes.get(name, "#") for each in page.elements for name in ("src", "href")]
    assert all(link.startswith("#") for link in links)
    assert not re.search(r"@import|url\(|https?://", page.html)


def test_every_link_has_its_place(page: Page) -> None:
    anchors = [each.attributes["id"] for each in page.elements if "id" in each.attributes]
    assert len(anchors) == len(set(anchors))
    assert {each.attributes["href"].removeprefix("#") for each in page.all("a")} <= set(anchors)


def test_headings_go_down_one_step_at_a_time(page: Page) -> None:
    levels = [int(each.tag[1]) for each in page.elements if re.fullmatch("h[1-6]", each.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_picture_and_table_says_what_it_is(page: Page) -> None:
    assert all(each.attributes["role"] == "img" and each.attributes["aria-label"] for each in page.all("svg"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert len(page.all("figcaption")) == len(page.all("figure"))
    assert all(each.attributes.get("scope") for each in page.all("th"))


def test_numbers_are_numbers(page: Page) -> None:
    assert not re.search(r"\b(nan|inf|None)\b", page.html)
    assert "$" not in page.html


def test_protocols_are_apart_and_said(pacs: Page) -> None:
    assert [each.text.split(":")[0] for each in pacs.all("h4")] == ["Online", "After a pass"]
    captions = [each.text for each in pacs.all("caption")]
    assert sum(caption.endswith("while adapting count") for caption in captions) > 3
    assert sum(caption.endswith("when adapting is done, count") for caption in captions) > 3


def test_every_method_is_drawn_in_each_figure(pacs: Page) -> None:
    methods, protocols, temperings, domains = len(plausible.LABELS), 2, 3, 4
    assert len(pacs.all("div", "method")) == methods * protocols
    # One picture for each of three temperings, and one for each domain.
    assert len(pacs.all("line", "joined")) == methods * protocols * (temperings + domains)
    assert len(pacs.all("path", "area")) == len(pacs.all("line", "range")) == domains


def test_a_method_has_one_look_everywhere(tiers: Page) -> None:
    names = [each.text for each in tiers.all("p") if each.inside[-1] == "method"]
    looks = [each.attributes["class"] for each in tiers.all("span", "dot")]
    assert len(names) == len(looks) == len(plausible.LABELS) * 2 * 2  # networks and protocols
    assert len(set(zip(names, looks, strict=True))) == len(set(names)) == len(set(looks))


def test_tiers_are_lines_and_domains_are_rows(tiers: Page, pacs: Page) -> None:
    networks, protocols = 2, 2
    # Five quantiles once; and two scores and tau, of three temperings, for each protocol.
    assert len(tiers.all("path", "series")) == networks * (5 + protocols * 3 * 3)
    assert not pacs.all("path", "series")


def test_the_papers_numbers_are_there_with_their_doubts(pacs: Page) -> None:
    printed = [each.text for each in pacs.all("span", "printed")]
    assert "paper: 0.061" in printed  # DEC's ECE on PACS with EfficientNet
    assert "paper: 0.466†" in printed
    assert "† NLL of No Adapt" in pacs.text


def test_tables_of_all_networks_stand_once_at_the_data_set(tiers: Page) -> None:
    assert sum("run-to-run variance" in each.text for each in tiers.all("caption")) == 2  # protocols


def test_a_users_own_data_and_methods_are_shown_by_their_names() -> None:
    mine = plausible.sweep("my cats", "tiny-net", ("home", "zoo"), labels=("source", "mine"), limit=50)
    text = Page(plausible.results(mine)).text
    for name in ("my cats", "tiny-net", "home", "zoo", "mine", "at most 50 images of a part"):
        assert name in text


def test_hostile_names_are_words_and_nothing_else() -> None:
    strange: dict[str, Any] = {
        "data": HOSTILE, "backbone": HOSTILE, "targets": (HOSTILE, "b"), "labels": ("source", "dec", HOSTILE),
    }  # fmt: skip
    lines, streams = plausible.sweep(seeds=(0,), **strange)
    failed = line(HOSTILE, target=HOSTILE, error=HOSTILE) | {"traceback": f"{HOSTILE}\n</pre>{HOSTILE}"}
    page = Page(plausible.results((lines, streams), failures=(failed,)))
    assert "<script" not in page.html
    assert page.text.count(HOSTILE) > 100


def test_failures_are_told_once_each_with_their_tracebacks() -> None:
    failures = [line("tent", target=target, error="out of memory") for target in ("photo", "sketch")]
    page = Page(made([line()], failures=(*failures, line("dec", error="boom"))))
    summaries = [each.text for each in page.all("summary") if "cell" in each.text]
    assert summaries == ["2 cells: out of memory", "1 cell: boom"]
    assert [each.text for each in page.all("pre")] == ["Traceback: …"] * 2


def test_many_kinds_of_failures_do_not_swamp_the_page() -> None:
    failures = tuple(
        line("tent", seed=seed, error=f"boom {seed}" * 99) | {"traceback": "x" * 50_000} for seed in range(99)
    )
    page = Page(made([line()], failures=failures))
    assert len(page.all("pre")) == 20
    assert "And 79 more kinds of errors" in page.text
    assert len(page.html) < 300_000


@pytest.mark.parametrize(
    "results",
    [
        made(),
        made([line()]),
        made([line(tier=1)]),
        made([line("tent", "median")]),
        made([line("mine", "strange", data="x", protocol="after-pass")]),
        made(failures=(line("tent", error="boom"),)),
        made([line() | {"reliability": None}]),
        plausible.results(([], SMALL[1])),
        plausible.results((SMALL[0], [])),
        made([line(), line(target="fog", tier=2)]),  # only some have a tier
        made([line("tent", batch_size=1), line("tent", batch_size=50)]),
    ],
)
def test_a_part_of_everything_is_a_page(results: RunResults) -> None:
    page = Page(results)
    assert "What was run" in page.text
    assert not re.search(r"\b(nan|inf|None)\b", page.html)


def test_only_failures_say_so() -> None:
    text = Page(made(failures=(line("tent", error="boom"),))).text
    assert "There is no result yet" in text
    assert "boom" in text


def test_completeness_is_of_all_that_could_be_there() -> None:
    lines = [line(label, target=target) for label in ("source", "dec") for target in ("photo", "sketch")]
    whole, part = (sections(made(several))[0] for several in (lines, lines[:3]))
    assert progress(whole) == (4, 4)
    assert progress(part) == (3, 4)
    (failing,) = sections(made(lines, failures=(line("tent", target="photo", error="boom"),)))
    assert progress(failing) == (4, 6)
    assert "3 of 4" in report_page(made(lines[:3]))


def test_what_lacks_domains_or_seeds_of_the_paper_is_not_called_complete() -> None:
    def cells(results: RunResults) -> list[str]:
        return [each.text for each in Page(results).all("td")]

    part = [line(label, target=target) for label in ("source", "dec") for target in ("photo", "sketch")]
    assert "4, of 2 of 4 domains, 1 of 3 seeds" in cells(made(part))
    whole = [line(target=target, seed=seed) for target in "abcd" for seed in (0, 1, 2)]
    assert "12, complete" in cells(made(whole))
    assert "1, complete" in cells(made([line(data="mine")]))


def test_a_section_says_whether_it_is_as_in_the_paper() -> None:
    assert "All images, 15 epochs, as in the paper. One seed" in Page(made([line()])).text
    assert "1 epoch (the paper: 15): a trial, not comparable" in Page(made([line(epochs=1)])).text


def test_protocols_and_t_are_explained(pacs: Page) -> None:
    (entry,) = [each.text for each in pacs.all("dd") if "which answers count" in each.text]
    assert entry.startswith("Online: the answers given while adapting count; after a pass:")
    assert "notebook scores after a pass" in " ".join(entry.split())
    text = " ".join(pacs.text.split())
    assert "t, from t_min to t_max: the paper" in text
    assert "s range before the norm of the logits comes in." in text


def test_tau_has_one_spelling(page: Page) -> None:
    assert not re.search(r"\btau\b", page.text, flags=re.IGNORECASE)
    assert not any(re.search(r"\btau\b", each.attributes["aria-label"]) for each in page.all("svg"))


def test_bars_are_said_to_be_over_seeds_only_if_there_are_several(pacs: Page) -> None:
    assert "Bars are standard deviations over the seeds." in pacs.text
    assert "Bars are" not in Page(plausible.results(plausible.sweep(seeds=(0,)))).text


def test_counts_say_of_what(pacs: Page, tiers: Page) -> None:
    assert re.search(r"above its median in \d of 4 domains\.", pacs.text)
    assert re.search(r"above its median in \d of 3 tiers\.", tiers.text)


def test_streams_without_a_place_have_no_figure() -> None:
    # The results come at tiers; the stream does not, so it stands nowhere on their axis.
    lines = [line(label, kind, tier=1) for label in ("source", "dec") for kind in ("none", "mean", "fixed")]
    page = Page(made(lines, streams=(stream_line(),)))
    assert "figure 2" not in page.text
    assert "τ by tier" not in page.text


def test_methods_that_lack_something_are_marked_in_the_figures() -> None:
    lines = [line(label, target=target) for label in ("source", "tent") for target in ("photo", "sketch")]
    names = [each.text for each in Page(made(lines[:3])).all("text", "name")]
    assert "tent*" in names
    assert "source" in names


def test_settings_of_one_data_set_are_told_apart() -> None:
    few: dict[str, Any] = {"seeds": (0,), "labels": ("source", "dec")}
    both = plausible.results(plausible.sweep(**few), plausible.sweep(**few, limit=100, epochs=2))
    titles = [each.text for each in Page(both).all("h3")]
    assert "PACS with EfficientNetB0 (all images, 15 epochs)" in titles
    assert "PACS with EfficientNetB0 (at most 100 images of a part, 2 epochs)" in titles


def test_a_large_sweep_is_a_page_of_a_few_megabytes_in_seconds() -> None:
    several = TIERS | {"tiers": (1, 2, 3, 4, 5), "labels": ("source", "tent", "sotta", "dec")}
    sweep = plausible.sweep("tiny-imagenet-c", "mobilenet_v1", plausible.CORRUPTIONS, **several)
    start = time.process_time()
    html = report_page(plausible.results(sweep))
    assert len(sweep[0]) == 3000
    assert time.process_time() - start < 5  # less than 1 on an idle core
    assert len(html) < 600_000
    assert html.count("<svg") < 60  # no figure for each of the 75 shifts
