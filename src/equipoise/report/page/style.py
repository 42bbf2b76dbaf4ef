"""The style sheet of a page: what all pages share, then what is its own."""

from importlib.resources import files


def style(package: str) -> str:
    """The shared style sheet and the page.css of a package."""
    sheets = files("equipoise.report.page").joinpath("base.css"), files(package).joinpath("page.css")
    return "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)
