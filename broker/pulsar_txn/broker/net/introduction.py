"""Proofs of who a client is, again and again: at CONNECT, and before what it showed expires."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from pulsar_txn.broker.base.limits import LimitReached, Limits
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import unsigned64

from .answering import Answering
from .authentication import Authentication
from .proofs import Authenticated, refused_proxy

_logger = logging.getLogger(__name__)

_REFRESH: Final = b"PulsarAuthRefresh"
"""Asks for fresh credentials; Java's client ends the connection when it is not there."""
_NO_REQUEST: Final = unsigned64(-1)
_ANSWER_SECONDS: Final = 10.0
_LONGEST_WAIT_SECONDS: Final = 86_400.0
_DELEGATION: Final = ("original_principal", "original_auth_data", "original_auth_method")
"""Fields of CONNECT by which a proxy says for whom it asks."""
_SHOWN: Final = 80


def _endpoint(url: str) -> str:
    """Host and port as clients write them: with a scheme or without, an address of IPv6 in brackets or not."""
    return url.rpartition("://")[2].rstrip("/").replace("[", "").replace("]", "").lower()


class Introduced(Protocol):
    """Knowledge of a client from its credentials."""

    principal: str | None
    superuser: bool


class Introduction:
    """One client's credentials. Without authentication everybody is let in, and is nobody.

    `urls`: those that this server advertises. A client that comes by another address asks for one of them. `limits`: where
    clients of each role are counted, but for operators; the session leaves there when it ends.
    """

    def __init__(
        self,
        authentication: Authentication,
        connection: Answering,
        turn: Turn,
        urls: tuple[str, ...] = (),
        limits: Limits | None = None,
    ) -> None:
        self._authentication = authentication
        self._connection = connection
        self._turn = turn
        self._urls = urls
        self._limits = limits
        self._method = ""
        self._known: Authenticated | None = None
        self._timer: Any = None

    def admit(self, session: Introduced, body: Any) -> None:
        """CONNECT: tell the session who its client is. Raises Refusal; `reject` is then the answer."""
        session.principal = self.connect(body)
        session.superuser = self._authentication.is_superuser(session.principal)
        if self._limits is not None and not session.superuser:
            self._limits.enter_role(session.principal, session)

    def let_in(self, session: Introduced, body: Any) -> bool:
        """As `admit`; False where the client was refused, told so, and closed."""
        return self._or_reject(lambda: self.admit(session, body))

    def renew(self, body: Any) -> bool:
        """As `respond`; False where the client was refused, told so, and closed."""
        return self._or_reject(lambda: self.respond(body))

    def _or_reject(self, look: Callable[[], None]) -> bool:
        try:
            look()
        except Refusal as refusal:
            self.reject(refusal)
            return False
        return True

    def connect(self, body: Any) -> str | None:
        """CONNECT: the role. Raises Refusal; `reject` is then the answer.

        To be led to another server is refused with authentication and without: nothing is forwarded here.
        """
        wanted = body.proxy_to_broker_url
        if wanted and _endpoint(wanted) not in map(_endpoint, self._urls):
            known = " and ".join(filter(None, self._urls))
            text = f"{wanted[:_SHOWN]!r} is not this server, which is {known} and forwards nothing; look the topic up again"
            raise Refusal(ServerError.ServiceNotReady, text)
        if not self._authentication.enabled:
            return None
        if any(body.HasField(each) for each in _DELEGATION):
            raise refused_proxy()
        self._method = body.auth_method_name
        return self._look_at(body.auth_data).role

    def respond(self, body: Any) -> None:
        """AUTH_RESPONSE. Raises Refusal: the connection is to be closed, and so for another role than before."""
        known = self._known
        if known is None:
            raise Refusal(ServerError.AuthenticationError, "nobody asked for this answer")
        if self._look_at(body.response.auth_data).role != known.role:
            raise Refusal(ServerError.AuthenticationError, "the fresh credentials are of another role")

    def reject(self, refusal: Refusal) -> None:
        """Say why, and close."""
        self.ended()
        if self._limits is not None and isinstance(refusal, LimitReached):
            self._limits.note_reached(refusal.key)
        _logger.info("connection from %s is closed: %s", self._connection.peer, refusal.message)
        write = self._connection.write_command
        write("error", request_id=_NO_REQUEST, error=int(refusal.code), message=refusal.message)
        self._connection.close()

    def ended(self) -> None:
        """The client is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, data: bytes) -> Authenticated:
        now = self._turn.clock.now_ms() / 1000
        known = self._known = self._authentication.authenticate(self._method, data, self._connection.certificate, now)
        self.ended()
        if known.expires is not None:
            self._in(known.expires - now, self._expired)
        return known

    def _in(self, seconds: float, then: Callable[[], None]) -> None:
        self._timer = self._turn.runtime.call_later(min(max(seconds, 0.0), _LONGEST_WAIT_SECONDS), then)

    def _expired(self) -> None:
        """Ask for fresh credentials; a client that has none in time is closed."""
        known = self._known
        assert known is not None  # noqa: S101 - the timer is his
        assert known.expires is not None  # noqa: S101 - likewise
        left = known.expires - self._turn.clock.now_ms() / 1000
        if left > 0:  # longer than a timer lasts
            self._in(left, self._expired)
            return
        challenge = {"auth_method_name": self._method, "auth_data": _REFRESH}
        self._connection.write_command("authChallenge", challenge=challenge, protocol_version=21)
        self._in(_ANSWER_SECONDS, self._unanswered)

    def _unanswered(self) -> None:
        self.reject(Refusal(ServerError.AuthenticationError, "the credentials have expired, and no fresh ones came"))
