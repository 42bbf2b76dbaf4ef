"""A page opened in Chromium, and what is measured in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from playwright.sync_api import Browser, ConsoleMessage, Page, Route

Scheme = Literal["light", "dark"]

# Texts of one picture that cover each other by more than a fifth of the smaller, and texts that are cut off.
CROWDED = """() => {
  const wrong = [];
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")];
    const boxes = texts.map(text => [text.textContent, text.getBoundingClientRect()]);
    const where = svg.getAttribute("aria-label").slice(0, 60);
    boxes.forEach(([name, box], at) => {
      if (box.left < frame.left - 1.5 || box.right > frame.right + 1.5 || box.top < frame.top - 1.5
          || box.bottom > frame.bottom + 1.5) wrong.push(`${where}: "${name}" is cut off`);
      for (const [other, its] of boxes.slice(at + 1)) {
        const width = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const height = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        const smaller = Math.min(box.width * box.height, its.width * its.height);
        if (width > 0 && height > 0 && width * height > 0.2 * smaller)
          wrong.push(`${where}: "${name}" and "${other}" overlap`);
      }
    });
  }
  return wrong;
}"""

# The contrast (WCAG 2) of visible texts with what is behind them: the lowest of each kind of element, of the
# first 30 of the kind, since there are ten thousands of cells alike.
CONTRASTS = """() => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([red, green, blue]) =>
    0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = {}, seen = {};
  for (const element of document.querySelectorAll("body *")) {
    const name = `${element.tagName.toLowerCase()}.${element.getAttribute("class") || ""}`;
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.tagName === "title" || (seen[name] = (seen[name] ?? 0) + 1) > 30) continue;
    if (!element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const ink = parse(element instanceof SVGElement ? style.fill : style.color);
    const [bright, dim] = [luminance(ink), luminance(behind(element))].sort((a, b) => b - a);
    found[name] = Math.min(found[name] ?? 99, (bright + 0.05) / (dim + 0.05));
  }
  return found;
}"""


@dataclass
class Opened:
    """A page in the browser.

    Attributes:
        page: the page.
        requests: every address that it asked for but its own.
        errors: what it wrote to the console as an error, and what it threw.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def unfold(self) -> None:
        """Open everything that is folded."""
        self.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")

    def overflow(self) -> float:
        """By how many pixels the document is wider than the window."""
        return cast("float", self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def crowded(self) -> list[str]:
        """Texts in pictures that overlap or are cut off."""
        return cast("list[str]", self.page.evaluate(CROWDED))

    def contrasts(self) -> dict[str, float]:
        """The lowest contrast of the texts of every kind of element."""
        return cast("dict[str, float]", self.page.evaluate(CONTRASTS))

    def sizes(self, selector: str) -> list[tuple[float, float]]:
        """Width and height of every element."""
        boxes = self.page.locator(selector).evaluate_all(
            "all => all.map(each => each.getBoundingClientRect()).map(box => [box.width, box.height])"
        )
        return [(width, height) for width, height in cast("list[list[float]]", boxes)]


@contextmanager
def opened(browser: Browser, file: Path, width: int, scheme: Scheme, **others: Any) -> Iterator[Opened]:
    """Open a file in a window of a width; whatever else it asks for is counted and refused."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **others)
    made = Opened(context.new_page())
    address = file.as_uri()

    def route(asked: Route) -> None:
        if asked.request.url == address:
            asked.continue_()
        else:
            made.requests.append(asked.request.url)
            asked.abort()

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error":
            made.errors.append(message.text)

    made.page.route("**/*", route)
    made.page.on("console", heard)
    made.page.on("pageerror", lambda error: made.errors.append(str(error)))
    made.page.goto(address)
    yield made
    context.close()
