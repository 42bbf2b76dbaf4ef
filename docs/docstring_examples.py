"""An extension of griffe, which reads docstrings: lines that start with >>> are an example, shown as code."""

import re
from typing import Any

import griffe

_FIRST_PROMPT = re.compile(r"(?<=\n\n)(?=>>> )")


class DocstringExamples(griffe.Extension):
    """Puts examples under the heading that Google's style gives them."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Indent the examples at the end of a docstring under "Examples:"."""
        if obj.docstring is None:
            return
        words, *examples = _FIRST_PROMPT.split(obj.docstring.value, maxsplit=1)
        if examples:
            indented = "\n".join(f"    {line}".rstrip() for line in examples[0].splitlines())
            obj.docstring.value = f"{words}Examples:\n{indented}"
