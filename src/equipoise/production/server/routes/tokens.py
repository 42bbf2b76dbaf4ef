"""Bearer tokens: one for reading, one for changing. Every POST changes, because a prediction teaches."""

import hmac
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from equipoise.errors import OptionError
from equipoise.production.server.routes.refusals import TokenError

FEWEST_CHARACTERS = 16
"""The shortest token: 16 random characters cannot be guessed."""

HOW_TO_MAKE = "python -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE"
"""A command that writes a token."""

_bearer = HTTPBearer(auto_error=False, description="The token for reading (GET) or for changing (POST).")
_Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


@dataclass(frozen=True)
class Tokens:
    """The tokens that requests need.

    Attributes:
        change: for every POST, and good for reading too.
        read: for GET of streams and metrics; None: reading needs no token.
    """

    change: str = field(repr=False)
    read: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("change", "read"):
            token = getattr(self, name)
            if token is not None and not _usable(token):
                raise OptionError(
                    f"expected the token to {name} as at least {FEWEST_CHARACTERS} visible ASCII characters, "
                    f"got {len(token)} characters; make one with: {HOW_TO_MAKE}"
                )
        if self.read == self.change:
            raise OptionError("expected two different tokens, got the same for reading and for changing")

    @classmethod
    def from_files(cls, change: Path, read: Path | None = None) -> "Tokens":
        """The tokens in files, without the space around them."""
        return cls(change=_read_token(change), read=None if read is None else _read_token(read))


def _usable(token: str) -> bool:
    return len(token) >= FEWEST_CHARACTERS and token.isascii() and token.isprintable() and " " not in token


def _read_token(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: no token can be read: {error}; make one with: {HOW_TO_MAKE}") from error


def same(one: str, other: str) -> bool:
    """Whether two tokens are the same, in a time that says nothing about where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


def for_changing(tokens: Tokens | None) -> list[Any]:
    """The dependency that refuses a request without the token for changing; none without tokens."""
    if tokens is None:
        return []

    async def check(sent: _Bearer) -> None:
        if sent is None or not same(sent.credentials, tokens.change):
            raise TokenError("expected the token for changing, as the header Authorization: Bearer TOKEN")

    return [Depends(check)]


def for_reading(tokens: Tokens | None) -> list[Any]:
    """The dependency that refuses a request without one of the tokens; none where reading needs none."""
    if tokens is None or tokens.read is None:
        return []
    known = (tokens.read, tokens.change)

    async def check(sent: _Bearer) -> None:
        matches = [same(sent.credentials if sent else "", token) for token in known]  # all, not until one
        if not any(matches):
            raise TokenError("expected the token for reading, as the header Authorization: Bearer TOKEN")

    return [Depends(check)]
