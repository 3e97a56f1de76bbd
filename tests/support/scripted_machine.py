"""A machine that does what its requests say, for tests of its hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pulsar_txn.ledger.machine import Step
from pulsar_txn.wire.ids import Position


class ScriptedMachine:
    """Decides what a request carries as its Step; remembers what was applied."""

    logs = ("log",)

    def __init__(self) -> None:
        self.applied: list[bytes] = []
        self.due: list[Step[bytes]] = []

    def decide(self, request: Any, now_ms: int) -> Step[bytes]:
        step: Step[bytes] = request.step
        return step

    def apply(self, log: str, position: Position, record: bytes) -> None:
        self.applied.append(record)

    def encode(self, log: str, record: bytes) -> bytes:
        return record

    def decode(self, log: str, data: bytes) -> bytes:
        return data

    def recovered(self, now_ms: int) -> Step[bytes]:
        return Step()

    def deadline(self) -> int | None:
        return 0 if self.due and self.due[0].records[0][1] not in self.applied else None

    def expire(self, now_ms: int) -> Step[bytes]:
        return self.due[0]

    def snapshot(self) -> Iterator[bytes]:
        yield b"".join(self.applied)

    def restore(self, part: bytes) -> None:
        self.applied.append(part)

    def trim_before(self, log: str) -> Position | None:
        return None

    def check_invariants(self) -> None:
        """Nothing."""


class ScriptedRequest:
    """A request that carries its Step, and a token when somebody waits for the answer."""

    def __init__(self, step: Step[bytes], answers: list[Any] | None = None) -> None:
        self.step = step
        if answers is not None:
            self.token = lambda value, error, _message: answers.append((value, error))
