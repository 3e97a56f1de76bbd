"""Plug-ins chosen by Pulsar's keys; a buffer with logs of its own below the same broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from manual_runtime import ManualRuntime
from raw_client import FULL, Refused

from pulsar_txn.broker.base import plugins
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.broker import Broker
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.rm_pending_ack import PendingAckHandle
from pulsar_txn.rm_producer import TopicTransactionBuffer
from pulsar_txn.tc import TransactionCoordinator

HALF = "pulsar_txn_half_buffer:HalfTopicTransactionBuffer"


@pytest.mark.seed_rows("D43")
@pytest.mark.parametrize(
    ("group", "value", "found"),
    [
        (plugins.COORDINATORS, "log", TransactionCoordinator),
        (plugins.TRANSACTION_BUFFERS, "topic", TopicTransactionBuffer),
        (plugins.PENDING_ACKS, "pulsar_txn.rm_pending_ack:PendingAckHandle", PendingAckHandle),
        (plugins.LEDGERS, "memory", MemoryStore),
        (
            plugins.COORDINATORS,
            "org.apache.pulsar.transaction.coordinator.impl.MLTransactionMetadataStoreProvider",
            TransactionCoordinator,
        ),
        (
            plugins.TRANSACTION_BUFFERS,
            "org.apache.pulsar.broker.transaction.buffer.impl.TopicTransactionBufferProvider",
            TopicTransactionBuffer,
        ),
        (
            plugins.PENDING_ACKS,
            "org.apache.pulsar.broker.transaction.pendingack.impl.MLPendingAckStoreProvider",
            PendingAckHandle,
        ),
    ],
)
def test_a_value_means_a_class(group: str, value: str, found: Any) -> None:
    assert plugins.resolve(group, value) is found


@pytest.mark.seed_rows("D43")
@pytest.mark.parametrize("value", ["nonsense", "no.such.module:Class", "pulsar_txn.tc:Nothing", "pulsar_txn.tc:__name__"])
def test_a_value_that_means_nothing_is_refused_by_name(value: str) -> None:
    with pytest.raises(plugins.PluginError, match=value.partition(":")[0]):
        plugins.resolve(plugins.COORDINATORS, value)


class OlderBuffer(TopicTransactionBuffer):
    """As it was written for an older version."""

    last_sequence_id = waiting = None  # type: ignore[assignment]  # what a class of its own would not have at all


class OlderHandle(PendingAckHandle):
    """As `OlderBuffer`."""

    first_holder = None  # type: ignore[assignment]  # as above


def made_by_a_function(*_arguments: Any) -> Any:
    """Nobody can know what it makes."""


@pytest.mark.parametrize(
    ("group", "name", "missing"),
    [
        (plugins.TRANSACTION_BUFFERS, "OlderBuffer", "lacks last_sequence_id, waiting, which this version needs"),
        (plugins.PENDING_ACKS, "OlderHandle", "lacks first_holder, which this version needs"),
        (plugins.COORDINATORS, "OlderHandle", "lacks is_registered, belongs_to, which this version needs"),
    ],
)
def test_a_class_without_a_method_of_its_protocol_is_refused_when_it_is_chosen(group: str, name: str, missing: str) -> None:
    with pytest.raises(plugins.PluginError, match=missing):
        plugins.resolve(group, f"{__name__}:{name}")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("transaction_buffer_provider_class_name", "OlderBuffer"),
        ("transaction_pending_ack_store_provider_class_name", "OlderHandle"),
    ],
)
def test_a_broker_with_an_older_plugin_does_not_start(key: str, name: str) -> None:
    config = BrokerConfig(**{key: f"{__name__}:{name}"})  # type: ignore[arg-type]  # the key is a parameter of the test
    with pytest.raises(plugins.PluginError, match=name):
        Broker(config, MemoryStore(), ManualRuntime())


def test_a_factory_that_is_a_function_is_taken_as_it_is() -> None:
    assert plugins.resolve(plugins.TRANSACTION_BUFFERS, f"{__name__}:made_by_a_function") is made_by_a_function


@pytest.fixture
async def half(benches: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "plugin_example" / "src"))
    return await benches(transaction_buffer_provider_class_name=HALF).start()


async def test_a_half_message_buffer_shows_at_commit_and_never_what_was_aborted(half: Any) -> None:
    client = half.client()
    await client.producer("a")
    await client.subscribe("a")
    committed, aborted = await client.new_txn(), await client.new_txn()
    for txn in (committed, aborted):
        await client.add_topics(txn, FULL + "a")
    await client.sent(b"c0", txn=committed)
    await client.sent(b"a0", txn=aborted)
    await client.sent(b"plain")
    assert await client.payloads(1) == [b"plain"]
    await client.sent([b"c1", b"c2"], txn=committed)
    await client.abort(aborted)
    await client.nothing()
    await client.end(committed)
    assert await client.payloads(3) == [b"c0", b"c1", b"c2"]
    with pytest.raises(Refused):
        await client.sent(b"late", txn=aborted)


@pytest.mark.parametrize("crash", [True, False])
async def test_a_half_message_buffer_keeps_its_open_transactions_through_a_restart(half: Any, crash: bool) -> None:
    client = half.client()
    await client.producer("a")
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    await client.sent(b"0", txn=txn)
    await client.sent(b"plain")
    await client.sent(b"1", txn=txn)
    await (half.crash() if crash else half.restart())
    again = half.client()
    await again.subscribe("a")
    assert await again.payloads(1) == [b"plain"]
    await again.request("tcClientConnectRequest", tc_id=0)
    await again.end(txn)
    assert await again.payloads(2) == [b"0", b"1"]
    await (half.crash() if crash else half.restart())
    third = half.client()
    await third.subscribe("a")
    assert await third.payloads(3) == [b"plain", b"0", b"1"]
