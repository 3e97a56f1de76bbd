"""Who the client says it is: a method name, and data fetched anew for every connection and every challenge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs


class Authentication(Protocol):
    """A way to prove who we are. `data()` is called per connection and on AUTH_CHALLENGE, so it may rotate."""

    @property
    def method_name(self) -> str:
        """Pulsar's name of the method, for example `token`."""
        ...

    def data(self) -> bytes:
        """What to send. Must not block."""
        ...


@attrs.frozen
class TokenAuthentication:
    """A JSON Web Token, or a callable that returns the current one. The token is left out of `repr`."""

    token: str | Callable[[], str] = attrs.field(repr=False)
    method_name: str = "token"

    def data(self) -> bytes:
        """The token as bytes."""
        return (self.token() if callable(self.token) else self.token).encode()
