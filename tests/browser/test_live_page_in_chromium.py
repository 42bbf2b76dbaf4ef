"""The live page as an operator sees it, on streams that run, are held, are many, and have hostile names."""

import re
import time
from collections.abc import Iterator
from typing import cast

import pytest
from playwright.sync_api import Browser, Dialog, Locator, Page, expect

from tests.browser.live import Live, MadeUp, served, visited
from tests.browser.opened import Scheme

pytestmark = pytest.mark.browser

WINDOW, PHONE = 1200, 390
CONTRAST = 4.5
"""What WCAG 2 asks for texts of ordinary size (level AA)."""
HOSTILE = "<img src=x onerror=alert(1)>&\"'"

# How many pixels of a canvas have a colour, given as red, green and blue.
PIXELS = """(canvas, [red, green, blue]) => {
  const size = { width: canvas.width, height: canvas.height };
  const copy = Object.assign(document.createElement("canvas"), size);
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) {
    const near = [red, green, blue].every((value, each) => Math.abs(data[at + each] - value) < 6);
    if (near && data[at + 3] > 20) found += 1;
  }
  return found;
}"""
ACCENT = (11, 114, 133)
ORANGE = (194, 65, 12)


@pytest.fixture
def live() -> Iterator[Live]:
    with served(Live()) as made:
        yield made


def row(page: Page, place: int = 0) -> Locator:
    return page.locator("li.stream").nth(place)


def field(row: Locator, name: str) -> Locator:
    return row.locator(f'[data-field="{name}"]')


def pixels(row: Locator, plot: str, colour: tuple[int, int, int]) -> int:
    canvas = field(row, plot).locator("canvas")
    return cast("int", canvas.evaluate(PIXELS, list(colour)))


def picture(row: Locator, plot: str) -> str:
    return cast("str", field(row, plot).locator("canvas").evaluate("canvas => canvas.toDataURL()"))


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def running(name: str = "camera-1") -> MadeUp:
    stream = MadeUp(name)
    stream.move(40)
    return stream


def test_curves_and_numbers_move_while_a_stream_runs(browser: Browser, live: Live) -> None:
    stream = running()
    live.streams = [stream]
    with visited(browser, live) as made:
        shown = row(made.page)
        plots = ("accuracy-plot", "confidence-plot", "temperature-plot")
        expect(field(shown, "batches")).to_have_text("40")
        expect(field(shown, "temperature-readout")).to_have_text(f"{stream.rows[-1]['temperature']:.2f}")
        before = [picture(shown, plot) for plot in plots]
        bar = field(shown, "histogram").locator(".share").first
        height = cast("float", bar.evaluate("bar => bar.getBoundingClientRect().height"))
        for _ in range(3):
            stream.move(7)
            last = stream.rows[-1]
            expect(field(shown, "batches")).to_have_text(str(len(stream.rows)))
            number = f"{percent(last['accuracy'])} ({100 * last['low']:.1f} to {100 * last['high']:.1f})"
            expect(field(shown, "accuracy")).to_have_text(number)
            source = f"source model {percent(last['source_accuracy'])}"
            expect(field(shown, "accuracy-readout")).to_have_text(f"{number}, {source}")
            expect(field(shown, "confidence-readout")).to_have_text(percent(last["confidence"]))
            after = [picture(shown, plot) for plot in plots]
            assert all(old != new for old, new in zip(before, after, strict=True))
            before = after
        assert abs(cast("float", bar.evaluate("bar => bar.getBoundingClientRect().height")) - height) > 5
        assert (made.errors, made.requests) == ([], [])


def test_the_band_is_drawn_around_the_estimate(browser: Browser, live: Live) -> None:
    with_band, without = running("with"), running("without")
    for each in without.rows:
        each.update(low=None, high=None)
    live.streams = [with_band, without]
    with visited(browser, live) as made:
        expect(field(row(made.page, 1), "temperature-readout")).to_have_text(re.compile(r"\d"))
        assert pixels(row(made.page, 0), "accuracy-plot", ACCENT) > 10_000
        assert 300 < pixels(row(made.page, 1), "accuracy-plot", ACCENT) < 5_000
        assert made.errors == []


def test_the_histogram_has_a_bar_as_high_as_each_share(browser: Browser, live: Live) -> None:
    stream = running()
    stream.rows[-1]["histogram"] = [0.5, 0.25, 0.125, 0.125, 0.0]
    live.streams = [stream]
    with visited(browser, live) as made:
        histogram = field(row(made.page), "histogram")
        expect(field(row(made.page), "histogram-readout")).to_have_text("largest: class 0, 50.0 %")
        expect(histogram).to_have_attribute(
            "aria-label", "class 0 50.0 %, class 1 25.0 %, class 2 12.5 %, class 3 12.5 %, class 4 0.0 %"
        )
        made.page.wait_for_timeout(500)  # for the transition of heights
        boxes = made.sizes(".share")
        heights = [height / boxes[0][1] for _, height in boxes]
        assert heights == pytest.approx([1, 0.5, 0.25, 0.25, 0], abs=0.02)


def test_a_guard_event_is_marked_and_given_with_its_reason(browser: Browser, live: Live) -> None:
    stream = running()
    live.streams = [stream]
    with visited(browser, live) as made:
        shown = row(made.page)
        expect(field(shown, "event")).to_have_text("none")
        assert pixels(shown, "accuracy-plot", ORANGE) == 0
        stream.move(5)
        stream.guard = "holding for 20 batches"
        stream.act("hold", "class 3 has 71 % of the answers", "collapse", at=time.time() - 3)
        expect(field(shown, "event")).to_have_text(re.compile(r"hold at \d\d:\d\d:\d\d"))
        expect(field(shown, "guard")).to_have_text("holding for 20 batches")
        expect(field(shown, "events")).to_contain_text("class 3 has 71 % of the answers")
        expect(field(shown, "events")).to_contain_text("batch 45, collapse")
        expect(shown).to_have_class(re.compile("troubled"))
        assert pixels(shown, "accuracy-plot", ORANGE) > 100
        stream.act("release", "20 batches have passed")
        expect(field(shown, "event")).to_have_text(re.compile("release"))
        expect(shown).not_to_have_class(re.compile("troubled"))
        stream.act("reset", "asked for", "request")  # by a person: the stream goes on to learn
        expect(field(shown, "event")).to_have_text(re.compile("reset"))
        expect(shown).not_to_have_class(re.compile("troubled"))
        expect(field(shown, "events").locator("li").first).to_have_text(re.compile("batch 45, asked for$"))
        stream.act("rollback", "worse than the source model", "estimates")  # by the guard: held after it
        expect(shown).to_have_class(re.compile("troubled"))
        assert made.errors == []


def test_an_estimate_outside_of_the_rehearsal_is_said_and_drawn_otherwise(
    browser: Browser, live: Live
) -> None:
    stream = running()
    live.streams = [stream]
    with visited(browser, live) as made:
        shown = row(made.page)
        expect(field(shown, "batches")).to_have_text("40")
        expect(field(shown, "warning")).to_be_hidden()
        stream.move(20, inside=False)
        expect(field(shown, "warning")).to_contain_text("not to be trusted")
        assert pixels(shown, "accuracy-plot", ORANGE) > 50


def test_the_guards_words_and_labels_that_have_come_are_shown(browser: Browser, live: Live) -> None:
    stream = running()
    stream.labels = 320
    live.streams = [stream]
    with visited(browser, live) as made:
        shown = row(made.page)
        expect(field(shown, "guard")).to_have_text("batch 40: learning")
        expect(field(shown, "evidence")).to_contain_text("estimates 0%, labels 3%")
        expect(field(shown, "facts")).to_contain_text("87.5 % right by the last 320 labels of 1,280")
        expect(field(shown, "facts")).not_to_contain_text("90 % sets")
        stream.decisions = {
            "coverage": 0.897,
            "coverage_low": 0.842,
            "coverage_high": 0.938,
            "answered_share": 0.831,
        }
        sets = "89.7 % of 90 % sets have the class (estimated, 84.2 % to 93.8 %)"
        acted = "83.1 % can be acted upon with 95 % right"
        expect(field(shown, "facts")).to_contain_text(f"{sets} · {acted}")


def test_values_under_the_pointer_are_read_out(browser: Browser, live: Live) -> None:
    stream = running()
    live.streams = [stream]
    with visited(browser, live) as made:
        plot = field(row(made.page), "temperature-plot")
        readout = field(row(made.page), "temperature-readout")
        expect(readout).to_have_text(re.compile(r"^\d\.\d\d$"))
        plot.locator(".u-over").hover(position={"x": 1, "y": 30})
        expect(readout).to_have_text(re.compile(rf"^\d\d:\d\d:\d\d: {stream.rows[0]['temperature']:.2f}$"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WINDOW, PHONE])
def test_it_is_readable(browser: Browser, live: Live, width: int, scheme: Scheme) -> None:
    long, held = running("a-name-that-goes-on-and-on-without-any-break-at-all-" * 2), running("held")
    long.guard = "fine: " + "x" * 80
    held.mode = "hold"
    held.move(5, inside=False)
    held.act("hold", "a reason with a_very_long_word_" + "without_a_break_" * 8)
    live.streams = [long, held, MadeUp("new")]
    with visited(browser, live, width, scheme) as made:
        expect(field(row(made.page, 1), "events")).to_contain_text("a reason")
        assert made.overflow() <= 0
        assert not {name: ratio for name, ratio in made.contrasts().items() if ratio < CONTRAST}
        sizes = made.page.locator("body *").evaluate_all(
            """all => all.filter(each => each.innerText?.trim())
                      .map(each => parseFloat(getComputedStyle(each).fontSize))"""
        )
        assert min(sizes) >= 12
        assert all(
            plot_width > 0.75 * width - 120 or width == WINDOW for plot_width, _ in made.sizes(".plot")
        )
        assert made.errors == []


def test_a_hostile_name_is_shown_as_text(browser: Browser, live: Live) -> None:
    stream = running(HOSTILE)
    stream.guard = "<script>alert(2)</script>"
    stream.act("reset", "<b onclick=alert(3)>reason</b>")
    live.streams = [stream]
    with visited(browser, live) as made:
        alerts: list[str] = []

        def noted(dialog: Dialog) -> None:
            alerts.append(dialog.message)
            dialog.dismiss()

        made.page.on("dialog", noted)
        expect(field(row(made.page), "name")).to_have_text(HOSTILE)
        expect(field(row(made.page), "guard")).to_have_text("<script>alert(2)</script>")
        expect(field(row(made.page), "events")).to_contain_text("<b onclick=alert(3)>reason</b>")
        expect(field(row(made.page), "temperature-readout")).to_have_text(re.compile(r"\d"))
        assert made.page.locator("main img, main script, main b").count() == 0
        assert (alerts, made.errors, made.requests) == ([], [], [])


def test_of_many_streams_fifty_are_shown_and_all_are_found(browser: Browser, live: Live) -> None:
    live.streams = [MadeUp(f"camera-{at:03d}") for at in range(120)]
    live.streams[117].guard = "holding for 3 batches"
    with visited(browser, live) as made:
        rows = made.page.locator("li.stream")
        expect(rows).to_have_count(50)
        expect(made.page.locator("#more")).to_contain_text("first 50 of 120")
        made.page.get_by_label("Find by name").fill("holding")
        expect(rows).to_have_count(1)
        expect(field(rows.first, "name")).to_have_text("camera-117")
        expect(made.page.locator("#more")).to_be_hidden()
        made.page.get_by_label("Find by name").fill("nothing like it")
        expect(made.page.locator("#more")).to_have_text("No stream matches.")
        made.page.get_by_label("Find by name").fill("")
        expect(rows).to_have_count(50)
        names = [each.strip() for each in made.page.locator('[data-field="name"]').all_inner_texts()]
        assert names == sorted(names)
        assert made.errors == []


def test_a_closed_row_asks_for_no_history_until_it_is_opened(browser: Browser, live: Live) -> None:
    live.streams = [running(f"camera-{at}") for at in range(5)]
    with visited(browser, live) as made:
        expect(field(row(made.page, 2), "temperature-readout")).to_have_text(re.compile(r"\d"))
        closed = row(made.page, 4)
        expect(field(closed, "temperature-readout")).to_have_text("")
        closed.locator("summary").focus()
        made.page.keyboard.press("Enter")
        expect(field(closed, "temperature-readout")).to_have_text(re.compile(r"\d"))
        assert made.errors == []


def test_the_history_of_a_stream_on_disk_is_asked_for_once(browser: Browser, live: Live) -> None:
    stream = running()
    live.streams = [stream]
    with visited(browser, live) as made:
        asked: list[str] = []
        made.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
        for forgotten in (False, True, False):
            stream.forgotten = forgotten
            where = "on disk" if forgotten else "in memory"
            expect(field(row(made.page), "facts")).to_contain_text(where)
            asked.clear()
            while asked.count("streams") < 4:
                made.page.wait_for_timeout(100)
            histories = sum(each.startswith("history") for each in asked)
            assert histories <= 1 if forgotten else histories >= 3
        assert made.errors == []


def test_the_history_of_a_stream_on_disk_that_starts_again_is_asked_for_again(
    browser: Browser, live: Live
) -> None:
    stream = running()
    stream.forgotten = True
    live.streams = [stream]
    with visited(browser, live) as made:
        expect(field(row(made.page), "temperature-readout")).to_have_text(re.compile(r"\d"))
        with made.page.expect_request("**/history?since=0"):
            stream.rows = stream.rows[:5]
        assert made.errors == []


def test_without_a_stream_the_page_says_how_to_make_one(browser: Browser, live: Live) -> None:
    with visited(browser, live) as made:
        expect(made.page.locator("#curl")).to_contain_text(f"{live.address}v1/predict?stream=")
        live.streams = [running()]
        expect(row(made.page)).to_be_visible()
        expect(made.page.locator("#empty")).to_be_hidden()
        assert made.errors == []


def test_a_lost_connection_is_said_and_found_again(browser: Browser) -> None:
    live = Live([running()])
    with served(live):
        context = visited(browser, live)
        made = context.__enter__()
        expect(field(row(made.page), "batches")).to_have_text("40")
        expect(made.page.get_by_role("alert")).to_be_hidden()
    expect(made.page.get_by_role("alert")).to_contain_text("the server does not answer")
    live.streams[0].move(3)
    with served(live, port=int(live.address.rsplit(":", 1)[1].rstrip("/"))):
        expect(made.page.get_by_role("alert")).to_be_hidden()
        expect(field(row(made.page), "batches")).to_have_text("43")
    context.__exit__(None, None, None)


def test_a_token_is_asked_for_once_a_tab(browser: Browser, live: Live) -> None:
    live.streams, live.token = [running()], "secret"
    with visited(browser, live) as made:
        expect(made.page.get_by_role("heading", name="A token is needed")).to_be_visible()
        made.page.get_by_label("Token", exact=True).fill("wrong")
        made.page.keyboard.press("Enter")
        expect(made.page.get_by_role("heading", name="The token was refused")).to_be_visible()
        made.page.get_by_label("Token", exact=True).fill("secret")
        made.page.get_by_role("button", name="Show the streams").click()
        expect(field(row(made.page), "batches")).to_have_text("40")
        made.page.reload()
        expect(field(row(made.page), "batches")).to_have_text("40")
        assert made.page.evaluate("localStorage.length") == 0
        assert all("401" in error for error in made.errors)


def test_a_stream_that_starts_again_is_drawn_from_its_start(browser: Browser, live: Live) -> None:
    live.streams = [running()]
    with visited(browser, live) as made:
        expect(field(row(made.page), "batches")).to_have_text("40")
        again = MadeUp("camera-1")
        again.move(6)
        live.streams = [again]
        expect(field(row(made.page), "batches")).to_have_text("6")
        expect(field(row(made.page), "temperature-readout")).to_have_text(
            f"{again.rows[-1]['temperature']:.2f}"
        )


def test_a_stream_on_disk_that_is_not_remembered_has_no_made_up_numbers(browser: Browser, live: Live) -> None:
    stream = running()
    live.streams = [stream]
    with visited(browser, live) as made:
        shown = row(made.page)
        expect(field(shown, "facts")).to_contain_text("2 snapshots to go back to · in memory")
        stream.forgotten = True
        expect(field(shown, "facts")).to_contain_text(" · on disk until the next request")
        expect(field(shown, "accuracy")).to_have_text("on disk")


def test_plots_and_fields_have_names_for_those_who_do_not_see_them(browser: Browser, live: Live) -> None:
    live.streams = [running()]
    with visited(browser, live) as made:
        expect(field(row(made.page), "accuracy-plot")).to_have_attribute(
            "aria-label", re.compile(r"\d\d\.\d %")
        )
        for picture in made.page.locator("[role=img]").all():
            assert re.search(r"\d", picture.get_attribute("aria-label") or "")
        for entry in made.page.locator("input").all():
            assert made.page.locator(f"label[for={entry.get_attribute('id')}]").count() == 1
