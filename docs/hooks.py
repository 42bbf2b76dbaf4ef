"""Hooks of the documentation site: pages of the repository's root, and links that hold in both places.

CONTRIBUTING.md and CHANGELOG.md stay in the root, where people look for them. Links in all pages are written
for a browser of the repository. Here a link to a page becomes a link of the site, and a link to a source
file, which the site does not have, becomes the path of the file.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")
_CODE = r"^```.*?^```|`[^`\n]*`"
_LINK = r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<to>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
_CODE_OR_LINK = re.compile(f"{_CODE}|{_LINK}", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root."""
    root = Path(config.config_file_path).parent
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(root / name).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to their places on the site; one to nothing stays, and the strict build reports it."""
    root, uri = Path(config.config_file_path).parent, page.file.src_uri
    folder = "" if uri in ROOT_PAGES else posixpath.join("docs", posixpath.dirname(uri))

    def replaced(found: re.Match[str]) -> str:
        if found["to"] is None or ":" in found["to"]:
            return found[0]
        target = posixpath.normpath(posixpath.join(folder, found["to"]))  # from the repository's root
        to = target if target in ROOT_PAGES else target.removeprefix("docs/")
        if target in ROOT_PAGES or (target != to and files.get_file_from_path(to)):
            place = posixpath.relpath(to, posixpath.dirname(uri) or ".")
            return f"[{found['text']}]({place}{found['anchor'] or ''})"
        return f"`{target}`" if (root / target).is_file() else found[0]

    return _CODE_OR_LINK.sub(replaced, markdown)
