"""Arguments and results of a pipeline: its options, its events and its result."""

from __future__ import annotations

import enum
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypedDict

import attrs

from pulsar_txn.client._validation import as_seconds, flag, one_of, seconds, seconds_of, whole
from pulsar_txn.client.receive.dead_letters import LETTERS_SUBSCRIPTION, check_initial
from pulsar_txn.client.receive.message import Message


class Poison(enum.Enum):
    """Fate of a message that fails again and again."""

    DEAD_LETTER = "dead_letter"
    """Sent to the dead-letter topic and acknowledged, in one transaction. A subscription there keeps it."""
    RAISE = "raise"
    """The pipeline ends with the handler's error; the message stays unacknowledged."""
    SKIP = "skip"
    """Acknowledged, in a transaction of its own, and logged."""


PoisonName: TypeAlias = Literal["dead_letter", "raise", "skip"]
"""Names of Poison that `pipeline` takes as well."""


@attrs.frozen
class PipelineEvent:
    """Event that an observer is called with. `kind`: committed, aborted, dead_letter or skipped; `error` is why, if so."""

    kind: str
    messages: tuple[Message[Any], ...]
    error: BaseException | None = None


@attrs.frozen
class PipelineResult:
    """Counts of a pipeline that ended. `committed` and `aborted` are transactions of the handler, the others messages."""

    committed: int
    aborted: int
    messages: int
    dead_lettered: int
    skipped: int


def _timeout(given: float | timedelta) -> float:
    return seconds_of(given, "timeout")


def _on_poison(given: Poison | PoisonName) -> Poison:
    return one_of(Poison, given, "on_poison")


@attrs.frozen(kw_only=True)
class PipelineOptions:
    """Options of `AsyncClient.pipeline`; seconds."""

    max_messages: int = attrs.field(default=500, validator=whole(1))
    max_wait: float = attrs.field(default=0.2, converter=as_seconds, validator=seconds(0))
    timeout: float = attrs.field(default=30.0, converter=_timeout)
    concurrency: int = attrs.field(default=1, validator=whole(1))
    on_poison: Poison = attrs.field(default=Poison.DEAD_LETTER, converter=_on_poison)
    max_aborts: int = attrs.field(default=3, validator=whole(1))
    dead_letter_topic: str | None = None
    initial_subscription: str | None = attrs.field(default=LETTERS_SUBSCRIPTION, validator=check_initial)
    """The subscription of the dead-letter topic that keeps the letters; with None nobody makes one."""
    ambient: bool = attrs.field(default=False, validator=flag)
    """True if operations of the handler without `txn=` take part in the batch's transaction."""


class PipelineOptionsDict(TypedDict, total=False):
    """The options of `pipeline` for type checkers and editors; its docstring says what each does."""

    max_messages: int
    max_wait: float | timedelta
    timeout: float | timedelta
    concurrency: int
    on_poison: Poison | PoisonName
    max_aborts: int
    dead_letter_topic: str | None
    initial_subscription: str | None
    ambient: bool
