"""Secrets, and texts as others may see them: what an error, a log, a metric or a command may print.

`Secret` is the one type for what proves who somebody is. `shown` is for texts that may carry such a thing by mistake: a URL
with a password, a token where the name of its file belongs.
"""

from __future__ import annotations

import hmac
import re
from typing import Final

HIDDEN: Final = "***"
"""Text printed in the place of a secret."""

_PATTERNS: Final = (
    (re.compile(r"(?<=://)\S*@"), f"{HIDDEN}@"),
    (re.compile(r"(?i)([?&;][^=&;\s]*(?:token|password|passwd|secret|pwd)[^=&;\s]*=)[^&;\s]+"), rf"\g<1>{HIDDEN}"),
    (re.compile(r"-----BEGIN.*?(?:-----END[A-Z \\n]*-----|$)", re.DOTALL), f"-----BEGIN {HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{6,}(?:\.[\w-]*){0,4}"), HIDDEN),
)
"""Credentials of a URL, parameters of a URL, PEM, a JSON Web Token or a part of one."""
_MARKS: Final = ("://", "-----BEGIN", "eyJ", "?", ";")


class Secret:
    """A text that only `reveal` gives out. It equals another secret with the same text, and travels by pickle."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text, for who proves or checks something with it."""
        return self._text

    @property
    def shown(self) -> str:
        """The name of the file that has the secret, where the text says `file://`; else nothing of it. Empty for no secret."""
        return self._text if not self._text or self._text.startswith("file://") else HIDDEN

    def __bool__(self) -> bool:
        return bool(self._text)

    def __str__(self) -> str:
        return HIDDEN

    def __repr__(self) -> str:
        return f"<Secret {HIDDEN}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(_bytes(self._text), _bytes(other._text))

    def __hash__(self) -> int:
        return hash(self._text)


def secret(value: str | Secret) -> Secret:
    """A secret of a text; one that is given stays what it is."""
    return value if isinstance(value, Secret) else Secret(value)


def optional_secret(value: str | Secret | None) -> Secret | None:
    """As `secret`; None stays None."""
    return None if value is None else secret(value)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def shown(text: str) -> str:
    """A text without the credentials in its URLs, without PEM and without JSON Web Tokens."""
    if not any(mark in text for mark in _MARKS):
        return text
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text
