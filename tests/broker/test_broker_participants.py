"""Ends of transactions on their way to topics and subscriptions: each is told until it has taken effect."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from raw_client import FULL, RawClient

from pulsar_txn.wire.ids import TxnId


async def ended(client: RawClient, txn: TxnId) -> None:
    """Commit, as a client does whose answer takes long: the request is repeated."""
    for _ in range(100):
        with suppress(AssertionError):
            await client.end(txn)
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{txn} has not ended")


async def test_an_end_at_which_a_topic_fails_is_repeated(
    bench: Any, client: RawClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    txn = await client.txn_with(a=b"one")
    topic, calls = bench.broker.topics[FULL + "a"], []
    end_txn = topic.end_txn

    def fails_once(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise ValueError("a fault of this topic")
        end_txn(*args)

    monkeypatch.setattr(topic, "end_txn", fails_once)
    await ended(client, txn)
    assert len(calls) == 2
    assert f"COMMIT of {txn} at" in caplog.text
    assert "ValueError: a fault of this topic" in caplog.text
    await client.subscribe("a", "s", 0, earliest=True)
    assert await client.payloads(1, 0) == [b"one"]


async def test_other_topics_take_their_end_while_one_fails(
    bench: Any, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = await client.txn_with(a=b"one", b=b"two")
    topic, failing = bench.broker.topics[FULL + "a"], [True]
    end_txn = topic.end_txn

    def fails(*args: Any) -> None:
        if failing:
            raise ValueError("a fault of this topic")
        end_txn(*args)

    monkeypatch.setattr(topic, "end_txn", fails)
    ending = asyncio.ensure_future(ended(client, txn))
    other = bench.client()
    await other.subscribe("b", "s", 0, earliest=True)
    assert await other.payloads(1, 0) == [b"two"]
    assert not ending.done()
    failing.clear()
    await ending
    await other.subscribe("a", "s", 1, earliest=True)
    assert await other.payloads(1, 1) == [b"one"]
