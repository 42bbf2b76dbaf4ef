"""What is drawn in an SVG or written in a page: the elements with their attributes and texts."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "input", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    inside: tuple[str, ...]
    texts: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> float:
        return float(self.attributes[name])

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Parsed(HTMLParser):
    """Reads HTML, and checks that tags close in the order in which they open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = tuple(each.attributes.get("class", "") for each in self._open)
        element = Element(tag, {name: value or "" for name, value in attrs}, classes)
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.texts.append(data)

    def all(self, tag: str, kind: str | None = None, *, within: str | None = None) -> list[Element]:
        """The elements of a tag and, if asked for, a class; `within` one of another class."""
        return [
            each
            for each in self.elements
            if each.tag == tag
            and (kind is None or kind in each.attributes.get("class", "").split())
            and (within is None or any(within in classes.split() for classes in each.inside))
        ]
