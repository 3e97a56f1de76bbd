"""`pulsar-txn doctor` on stock Pulsar: stuck transactions are made, found and cured; the official client judges the topic."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner
from late_writes import zombie
from official_reading import read_officially
from targets import Target

from pulsar_txn.broker.cli.group import group
from pulsar_txn.client import AsyncClient, ConsumerType
from pulsar_txn.wire.ids import TxnId

pytestmark = pytest.mark.timeout(180)


async def doctor(pulsar: Target, *options: str, stdin: str = "") -> tuple[int, str, str]:
    return await run("--cluster", pulsar.service_url, "--admin-url", pulsar.admin_url, *options, stdin=stdin)


async def run(*options: str, stdin: str = "") -> tuple[int, str, str]:
    """The command in a thread of this process: a process of its own takes two seconds to start."""
    done = await asyncio.to_thread(CliRunner().invoke, group, ["doctor", *options], input=stdin)
    return done.exit_code, done.stdout, done.stderr


async def found(pulsar: Target, topic: str, *options: str) -> list[dict[str, Any]]:
    code, out, error = await doctor(pulsar, "--topic", topic, "--older-than", "0", "--json", *options)
    findings: list[dict[str, Any]] = json.loads(out)
    assert code == (1 if findings else 0), error
    return findings


async def judge(pulsar: Target, topic: str, *expected: bytes) -> None:
    assert await asyncio.to_thread(read_officially, pulsar.service_url, topic, len(expected)) == list(expected)


async def test_a_topic_held_back_by_a_late_send_after_a_commit_is_found_and_cured_by_the_same_commit(
    stock_pulsar: Target, topic: str
) -> None:
    async with AsyncClient(stock_pulsar.service_url) as client, zombie(stock_pulsar) as dead:
        producer = await client.create_producer(topic)
        async with client.transaction() as txn:
            await producer.send(b"committed", txn=txn)
        await producer.send(b"before")
        await dead.send(topic, b"late", txn.id)
        await producer.send(b"after")
        (finding,) = await found(stock_pulsar, topic)
        assert finding["kind"] == "late_after_commit"
        assert finding["txnId"] == str(txn.id)
        assert (finding["blocked"], finding["cure"]) == (2, "repeat_commit")
        await judge(stock_pulsar, topic, b"committed", b"before")
        code, out, error = await doctor(stock_pulsar, "--topic", topic, "--older-than", "0", "--cure", "--yes")
        assert code == 0, error
        assert f"the commit of {txn.id} was repeated" in out
        await judge(stock_pulsar, topic, b"committed", b"before", b"late", b"after")
        assert await found(stock_pulsar, topic) == []


@pytest.mark.parametrize("txn_id", [TxnId(0, 10**9), TxnId(77, 5)])
async def test_a_transaction_that_no_coordinator_knows_is_aborted_only_after_a_question(
    stock_pulsar: Target, topic: str, txn_id: TxnId
) -> None:
    async with AsyncClient(stock_pulsar.service_url) as client, zombie(stock_pulsar) as dead:
        producer = await client.create_producer(topic)
        await producer.send(b"before")
        await dead.send(topic, b"orphan", txn_id)
        await producer.send(b"after")
        options = ("--topic", topic, "--older-than", "0", "--cure")
        code, out, _ = await doctor(stock_pulsar, *options, "--yes")
        assert code == 1
        assert str(txn_id) in out
        code, out, _ = await doctor(stock_pulsar, *options, stdin="n\n")
        assert code == 1
        assert "lose its messages" in out
        await judge(stock_pulsar, topic, b"before")
        code, out, error = await doctor(stock_pulsar, *options, stdin="y\n")
        assert code == 0, out + error
        await judge(stock_pulsar, topic, b"before", b"after")


async def test_a_transaction_of_a_coordinator_beside_the_cluster_is_never_aborted(stock_pulsar: Target, topic: str) -> None:
    async with AsyncClient(stock_pulsar.service_url) as client, zombie(stock_pulsar) as dead:
        producer = await client.create_producer(topic)
        lane = TxnId((1 << 62) + 5, 1)
        await dead.send(topic, b"in a lane", lane)
        (finding,) = await found(stock_pulsar, topic)
        assert (finding["kind"], finding["txnId"], finding["cure"]) == ("external", str(lane), None)
        code, *_ = await doctor(stock_pulsar, "--topic", topic, "--older-than", "0", "--cure", "--yes", "--abort-unknown")
        assert code == 1
        await producer.send(b"after")
        await judge(stock_pulsar, topic)


async def test_an_open_transaction_is_shown_with_its_coordinators_word_and_left_alone(stock_pulsar: Target, topic: str) -> None:
    async with AsyncClient(stock_pulsar.service_url) as client:
        producer = await client.create_producer(topic)
        async with client.transaction(timeout=100) as txn:
            await producer.send(b"inside", txn=txn)
            await producer.send(b"after")
            assert await found(stock_pulsar, topic, "--older-than", "3600") == []
            (finding,) = await found(stock_pulsar, topic)
            assert (finding["kind"], finding["txnId"], finding["cure"]) == ("open", str(txn.id), None)
            assert finding["blocked"] == 2
            code, *_ = await doctor(stock_pulsar, "--topic", topic, "--older-than", "0", "--cure", "--yes", "--abort-unknown")
            assert code == 1
        await judge(stock_pulsar, topic, b"inside", b"after")


async def test_late_acknowledgements_that_nobody_ends_are_given_back(stock_pulsar: Target, topic: str) -> None:
    async with AsyncClient(stock_pulsar.service_url) as client, zombie(stock_pulsar) as dead:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED)
        ids = [await producer.send(b"%d" % number) for number in range(3)]
        async with client.transaction() as txn:
            await consumer.acknowledge(await consumer.receive(), txn=txn)
        await consumer.close()
        await dead.ack(topic, "s", [ids[1].position], txn.id)
        (finding,) = await found(stock_pulsar, topic)
        assert (finding["kind"], finding["subscription"], finding["cure"]) == ("pending_acks", "s", "search")
        code, out, error = await doctor(
            stock_pulsar, "--topic", topic, "--older-than", "0", "--cure", "--yes", "--abort-unknown", "--search", "100"
        )
        assert code == 0, out + error
        assert await found(stock_pulsar, topic) == []
        again = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED)
        got = sorted([(await again.receive(timeout=10)).data for _ in range(2)])
        assert got == [b"1", b"2"]


async def test_of_several_transactions_each_is_named_once_and_in_a_partition_of_its_own(
    stock_pulsar: Target, topic: str
) -> None:
    async with AsyncClient(stock_pulsar.service_url) as client, zombie(stock_pulsar) as dead:
        await client.create_producer(topic)
        for least in (7, 8, 7, 9, 8):
            await dead.send(topic, b"orphan", TxnId(55, least))
        findings = await found(stock_pulsar, topic)
        assert [finding["txnId"] for finding in findings] == ["(55,7)", "(55,8)", "(55,9)"]
        assert {finding["blocked"] for finding in findings} == {5}
        code, out, error = await doctor(stock_pulsar, "--topic", topic, "--older-than", "0", "--cure", stdin="y\n" * 3)
        assert code == 0, out + error


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
async def test_on_our_broker_an_open_transaction_is_found_on_its_topic_and_its_subscription(pulsar: Target, topic: str) -> None:
    async with AsyncClient(pulsar.service_url) as client:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s")
        await producer.send(b"input")
        assert await found(pulsar, topic) == []
        async with client.transaction(timeout=100) as txn:
            await consumer.acknowledge(await consumer.receive(), txn=txn)
            await producer.send(b"inside", txn=txn)
            on_topic, on_subscription = await found(pulsar, topic)
            assert (on_topic["kind"], on_topic["txnId"], on_topic["blocked"]) == ("open", str(txn.id), 1)
            assert (on_subscription["kind"], on_subscription["subscription"]) == ("open", "s")
        assert await found(pulsar, topic) == []


async def test_what_is_not_there_and_what_cannot_be_meant_are_said(stock_pulsar: Target, topic: str) -> None:
    code, out, _ = await doctor(stock_pulsar, "--topic", topic)
    assert code == 1
    assert f"{topic}: there is no such topic" in out
    code, _, error = await doctor(stock_pulsar, "--topic", "non-persistent://public/default/t")
    assert code == 2
    assert "not persistent" in error
    code, _, error = await doctor(stock_pulsar, "--namespace", "public/none-of-this-name")
    assert code == 1
    assert "Namespace" in error
    code, _, error = await run("--cluster", "pulsar://127.0.0.1:1", "--admin-url", "http://127.0.0.1:1")
    assert code == 69
    assert "--admin-url" in error
    for options in (["--cluster", "http://h:1"], ["--cluster", "h", "--cure", "--json"], ["--cluster", "h", "--yes"]):
        code, *_ = await run(*options)
        assert code == 2
