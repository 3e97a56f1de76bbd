"""Limits of what all clients together may make this broker hold, and how often somebody met a limit.

One object per broker. Limits of one connection, topic or subscription are checked where they are kept; they count here
too, so that a metric tells which key is met. Every number is one of the configuration; 0 means no limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

from pulsar_txn.wire.errors import Refusal, ServerError

from .settings import BrokerConfig

MAX_BATCH_SIZE: Final = 100_000
"""Messages of one batch; an ack set has as many bits, so this bounds what a client's number can make us hold."""

MAX_ACK_IDS: Final = 100_000
"""Messages that one ACK names, or that one request wants again. Clients collect a thousand; ours sends a list of messages
that is acknowledged in a transaction whole."""

_RESERVED_DESCRIPTORS: Final = 256
"""Files that stay for the store and for HTTP, whatever the clients do."""


class LimitReached(Refusal):
    """Error: somebody wants more than a key of the configuration allows. `key`: Pulsar's spelling."""

    def __init__(self, key: str, what: str, code: ServerError = ServerError.TooManyRequests) -> None:
        super().__init__(code, f"{what}, as many as {key} allows; close some and retry, or raise that key")
        self.key = key


class Limits:
    """Counts connections, also of each role, requests under way, bytes of incomplete frames, and bytes of long answers."""

    def __init__(self, config: BrokerConfig, descriptors: int | None = None) -> None:
        self.reached: Counter[str] = Counter()
        """Key -> how often a client met it, refused or made to wait."""
        self.connections = 0
        self.requests = 0
        self.request_bytes = 0
        self.incoming_bytes = 0
        self.list_bytes = 0
        self._of_address: Counter[str] = Counter()
        self._of_role: dict[str, set[Any]] = {}
        self._at_most: dict[tuple[str, str], int] = {}
        self._config = config
        self._connections_key = "brokerMaxConnections"
        self._max_connections = config.broker_max_connections
        if descriptors is not None:
            left = max(1, descriptors - _RESERVED_DESCRIPTORS)
            if not self._max_connections or left < self._max_connections:
                self._max_connections, self._connections_key = left, "the limit of open files (ulimit -n)"
        self._max_incoming = config.max_message_publish_buffer_size_in_mb << 20
        self._waiting: dict[Callable[[], None], int] = {}  # in the order in which they came

    # ---- connections

    def enter(self, address: str) -> LimitReached | None:
        """A connection comes. None: it may stay, and `leave` follows. Otherwise why it may not."""
        each = self._config.broker_max_connections_per_ip
        reached: LimitReached | None = None
        if self._max_connections and self.connections >= self._max_connections:
            what = f"this broker has {self._max_connections} connections"
            reached = LimitReached(self._connections_key, what, ServerError.NotAllowedError)
        elif each and address and self._of_address[address] >= each:
            what = f"{address} has {each} connections to this broker"
            reached = LimitReached("brokerMaxConnectionsPerIp", what, ServerError.NotAllowedError)
        if reached is not None:
            self.reached[reached.key] += 1
            return reached
        self.connections += 1
        self._of_address[address] += 1
        return None

    def leave(self, address: str) -> None:
        """A connection that was let in is gone."""
        self.connections -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    # ---- roles

    def enter_role(self, role: str | None, session: object) -> None:
        """The client of a session has shown its role; `leave_role` follows. LimitReached. Without a role it is not limited."""
        most = self._config.max_connections_per_role
        sessions: Collection[Any] = () if role is None else self._of_role.get(role, ())
        if most and len(sessions) >= most and session not in sessions:
            what = f"role {role!r} has {most} connections"
            raise LimitReached("maxConnectionsPerRole", what, ServerError.NotAllowedError)
        if role is not None:
            self._of_role.setdefault(role, set()).add(session)

    def leave_role(self, role: str | None, session: object) -> None:
        """The session is over, whether it has entered or not."""
        sessions = None if role is None else self._of_role.get(role)
        if role is not None and sessions is not None:
            sessions.discard(session)
            if not sessions:
                del self._of_role[role]
                for key in [key for key in self._at_most if key[0] == role]:
                    del self._at_most[key]

    def has_room(self, role: str | None, kind: str, most: int, count: Callable[[Any], int]) -> bool:
        """True if the clients of a role may have one more of something; `count`: how many a session has.

        They are counted when there may be too many: until then it is enough to add what was let in.
        """
        sessions = None if role is None else self._of_role.get(role)
        if role is None or not sessions:
            return True
        at_most = self._at_most.get((role, kind), 0)
        if at_most >= most:
            at_most = sum(map(count, sessions))
        self._at_most[role, kind] = at_most + 1
        return at_most < most

    # ---- requests

    def begin_request(self, size: int) -> None:
        """A request of `size` bytes that takes more than a moment begins; `end_request` follows. Raises LimitReached."""
        most, most_bytes = self._config.max_concurrent_lookup_request, self._config.max_concurrent_request_size_in_mb << 20
        if most and self.requests >= most:
            raise LimitReached("maxConcurrentLookupRequest", f"{most} requests of all clients are under way")
        if most_bytes and self.request_bytes and self.request_bytes + size > most_bytes:
            what = f"requests of {self.request_bytes} bytes are under way"
            raise LimitReached("maxConcurrentRequestSizeInMB", what)
        self.requests += 1
        self.request_bytes += size

    def end_request(self, size: int) -> None:
        """Note that it was answered."""
        self.requests -= 1
        self.request_bytes -= size

    # ---- frames that are not complete

    def reserve_incoming(self, size: int, go_on: Callable[[], None]) -> bool:
        """Room for a frame of `size` bytes. False: there is no room now, and `go_on` is called when there is."""
        if self._max_incoming and self.incoming_bytes and self.incoming_bytes + size > self._max_incoming:
            self.reached["maxMessagePublishBufferSizeInMB"] += 1
            self._waiting[go_on] = size
            return False
        self.incoming_bytes += size
        return True

    def release_incoming(self, size: int) -> None:
        """The frame is complete, or nobody will complete it."""
        self.incoming_bytes -= size
        waiting = self._waiting
        while waiting:
            go_on, wanted = next(iter(waiting.items()))
            if self.incoming_bytes and self.incoming_bytes + wanted > self._max_incoming:
                return
            del waiting[go_on]
            self.incoming_bytes += wanted
            go_on()

    def forget_incoming(self, go_on: Callable[[], None]) -> None:
        """The connection that waits for room is gone."""
        self._waiting.pop(go_on, None)

    # ---- long answers

    def note_reached(self, key: str) -> None:
        """Count that a limit was reached, by the key of the configuration."""
        self.reached[key] += 1

    def list_written(self, size: int) -> None:
        """A long answer of so many bytes waits for its client."""
        self.list_bytes += size

    def list_taken(self, size: int) -> None:
        """The client took so many bytes of it, or is gone."""
        self.list_bytes -= size

    def check_list(self) -> None:
        """Check that another list of topics may be made. Raises LimitReached while clients do not read those that were."""
        most = self._config.max_topic_list_in_flight_heap_mem_size_mb << 20
        if most and self.list_bytes >= most:
            what = f"lists of {self.list_bytes} bytes wait for clients that do not read them"
            raise LimitReached("maxTopicListInFlightHeapMemSizeMB", what)
