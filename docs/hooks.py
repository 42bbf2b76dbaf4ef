"""Hooks of the documentation site: pages of the repository's root, and links that hold in both places.

CONTRIBUTING.md and CHANGELOG.md stay in the root, where people look for them. Links in all pages are written
for a browser of the repository. Here a link to a page becomes a link of the site, and a link to a source
file, which the site does not have, becomes the path of the file.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<to>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root."""
    root = Path(config.config_file_path).parent
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(root / name).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Point links to their places on the site."""
    root_page = page.file.src_uri in ROOT_PAGES
    folder = "" if root_page else posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def replaced(link: re.Match[str]) -> str:
        text, to, anchor = link["text"], link["to"], link["anchor"] or ""
        if ":" in to:
            return link[0]
        target = posixpath.normpath(posixpath.join(folder, to))  # from the repository's root
        uri = target if target in ROOT_PAGES else target.removeprefix("docs/")
        if files.get_file_from_path(uri) is None and target != uri:
            return link[0]  # a page that is missing: the strict build says so
        if target == uri and target not in ROOT_PAGES:
            return text if "`" in text else f"`{target}`"
        here = posixpath.dirname(page.file.src_uri) or "."
        return f"[{text}]({posixpath.relpath(uri, here)}{anchor})"

    return _LINK.sub(replaced, markdown)
