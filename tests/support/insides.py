"""Where tests look inside: what no interface shows, each in one place."""

from __future__ import annotations

from typing import Any


def coordinators_of(client: Any) -> Any:
    """The sessions of an asyncio client with the transaction coordinators."""
    return client._transactions.coordinators


def observers_of(client: Any) -> Any:
    """The observers of an asyncio client's transactions."""
    return client._transactions.observers


def partitions_of(producer: Any) -> Any:
    """The partition producers of an asyncio producer."""
    return producer._partitions


def budget_of(producer: Any) -> Any:
    """What an asyncio producer may have in flight."""
    return producer._budget


def state_of(machine: Any) -> Any:
    """The state that a machine folds its log into."""
    return machine._state


def lanes_of(coordinator: Any) -> Any:
    """The lanes of a coordinator that gives some."""
    return coordinator._state.lanes


def move_lane(coordinator: Any, lane: int, event: Any) -> None:
    """Let something happen to a lane, whatever the transaction in it says."""
    coordinator._state.lanes._move(lane, event)


def logs_of(store: Any) -> Any:
    """The logs of a journal by their names."""
    return store._open_logs.by_name


def syncer_of(store: Any) -> Any:
    """What syncs the files of a journal."""
    return store._syncer


def ours_of(official: Any) -> Any:
    """The object of ours behind one with official names."""
    return official._ours


def takers_of(machine: Any) -> Any:
    """Which consumer takes the chunks of each message that a Shared dispatch has begun."""
    return machine._chunks._takers


def waiting_chunks_of(machine: Any) -> Any:
    """Chunks that a Shared dispatch keeps back until their consumer takes more."""
    return machine._chunks._waiting


def leasts_of(buffer: Any) -> Any:
    """The heaps by which a topic buffer knows the least position of its open transactions."""
    return buffer._leasts


def open_in(buffer: Any) -> Any:
    """The open transactions of a topic buffer."""
    return buffer._ongoing


def aborted_in(buffer: Any) -> Any:
    """The aborted transactions of a topic buffer."""
    return buffer._aborted
