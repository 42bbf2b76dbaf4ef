"""Pages from the templates of this package, each one file without network."""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from equipoise.research.report.drawing import palette_css


def render(template: str, **values: Any) -> str:
    """A template of `templates/` with these values; text is escaped unless the template says `safe`."""
    style = palette_css() + files("equipoise.research.report").joinpath("templates/style.css").read_text(
        "utf-8"
    )
    return _environment().get_template(template).render(style=style, **values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("equipoise.research.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
