"""`produce`, `consume` and `transactions` against running servers: ours, and stock ones where they speak the same API."""

from __future__ import annotations

import asyncio
import json

import pytest
from command_line import pulsar_txn
from our_broker import OurBroker
from targets import Target

from pulsar_txn.client import AsyncClient

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_what_is_produced_is_consumed_in_order_and_acknowledged(pulsar: Target, topic: str) -> None:
    env = {"PULSAR_URL": pulsar.service_url}
    none = pulsar_txn("consume", topic, "-s", "sub", "--from-start", "-w", "0.1", env=env)
    assert (none.returncode, none.stdout) == (1, "")
    assert "0 received" in none.stderr
    assert pulsar_txn("produce", topic, "a", "b", env=env).stderr == f"2 sent to {topic}\n"
    assert pulsar_txn("produce", topic, env=env, stdin="c\nd").stderr == f"2 sent to {topic}\n"
    assert pulsar_txn("consume", topic, "-s", "sub", "-n", "3", env=env).stdout == "a\nb\nc\n"
    peeked = pulsar_txn("consume", topic, "-s", "sub", "--peek", env=env)
    assert peeked.stdout == "d\n"
    again = pulsar_txn("consume", topic, "-s", "sub", env=env)
    assert (again.returncode, again.stdout) == (0, "d\n")
    assert pulsar_txn("consume", topic, "-s", "sub", "-w", "0.1", env=env).returncode == 1


def test_messages_of_one_transaction_come_together_with_key_and_properties(pulsar: Target, topic: str) -> None:
    env = {"PULSAR_URL": pulsar.service_url}
    given = ("-t", "-k", "key", "-p", "colour=red", "-p", "n=1=2")
    sent = pulsar_txn("produce", topic, "x", "y", *given, env=env)
    assert sent.returncode == 0, sent.stderr
    told = pulsar_txn("consume", topic, "-s", "sub", "--from-start", "-n", "2", "-w", "10", "--json", env=env)
    first, second = map(json.loads, told.stdout.splitlines())
    assert (first["data"], second["data"]) == ("x", "y")
    assert (first["key"], first["properties"]) == ("key", {"colour": "red", "n": "1=2"})
    assert first["txn"] == second["txn"] is not None


@pytest.mark.seed_rows("D71")
async def test_open_transactions_are_listed_shown_and_aborted(pulsar: Target, topic: str) -> None:
    env = {"PULSAR_ADMIN_URL": pulsar.admin_url}

    async def run(*arguments: str) -> tuple[int, str, str]:
        done = await asyncio.to_thread(pulsar_txn, "transactions", *arguments, env=env)
        return done.returncode, done.stdout, done.stderr

    async with AsyncClient(pulsar.service_url) as client:
        producer = await client.create_producer(topic)
        txn = await client.begin_transaction(timeout=600)
        await producer.send(b"x", txn=txn)
        txn_id = f"({txn.id.most},{txn.id.least})"
        code, listed, _ = await run("list")
        assert code == 0
        (line,) = (each for each in listed.splitlines() if each.startswith(txn_id + "\t"))
        assert "OPEN" in line
        assert "timeout 600 s" in line
        assert "1 partitions, 0 subscriptions" in line
        code, listed, _ = await run("list", "--coordinator", str(txn.id.most), "--json")
        assert list(json.loads(listed)[txn_id]["producedPartitions"]) == [topic]
        assert txn_id not in (await run("list", "--older-than", "300"))[1]
        code, shown, _ = await run("show", f"{txn.id.most}:{txn.id.least}")
        assert json.loads(shown)["txnId"] == txn_id
        code, _, said = await run("abort", txn_id)  # nobody answers the question
        assert code == 1
        assert "OPEN" in (await run("show", txn_id))[1]
        code, _, said = await run("timeline", txn_id)
        assert (code, "keeps no timelines" in said) == (1, True)
        assert (await run("abort", "--yes", txn_id))[:2] == (0, f"{txn_id} is aborted\n")
        code, _, said = await run("show", txn_id)
        assert code == 1
        assert "404" in said
        assert "Traceback" not in said
        with pytest.raises(Exception, match=r"[Tt]ransaction"):
            await txn.commit()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("transactions", "--admin-url", f"http://{NOWHERE}", "list"), 69, f"no broker answers at http://{NOWHERE}"),
        (("transactions", "--admin-url", "ftp://x", "list"), 2, "write http://host:port"),
        (("transactions", "show", "3-1"), 2, "is not a transaction id"),
        (("transactions", "--admin-url", f"http://{NOWHERE}", "abort", "--yes", "3:1"), 69, "check --admin-url"),
        (("produce", "--url", f"pulsar://{NOWHERE}", "t", "x"), 69, "is a broker running there?"),
        (("produce", "--url", f"mailto:{NOWHERE}", "t", "x"), 2, "pulsar://"),
        (("produce", "a/b", "x"), 2, "is not a name"),
        (("produce", "t", "x", "-p", "colour"), 2, "is not NAME=VALUE"),
        (("consume", "--url", f"pulsar://{NOWHERE}", "t", "-s", "s"), 69, "is a broker running there?"),
        (("consume", "t"), 2, "--subscription"),
        (("ping", f"pulsar://{NOWHERE}"), 69, "is a broker running there?"),
        (
            ("functions", "list", "--admin-url", f"http://{NOWHERE}"),
            69,
            f"no broker answers at http://{NOWHERE} (Connect call failed",
        ),
        (("functions", "list", "--admin-url", f"http://{NOWHERE}"), 69, "check --admin-url"),
        (("functions", "create", "--function-config-file", "nowhere.yml"), 2, "nowhere.yml cannot be read: No such file"),
        (("doctor", "--cluster", f"pulsar://{NOWHERE}", "--admin-url", f"http://{NOWHERE}"), 69, "check --admin-url\n"),
    ],
)
def test_a_mistake_is_one_sentence_and_a_code(arguments: tuple[str, ...], code: int, sentence: str) -> None:
    done = pulsar_txn(*arguments)
    assert done.returncode == code
    assert sentence in done.stderr
    assert done.stderr.count(sentence) == 1 or arguments[0] != "ping", "a health check says it once"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_what_answers_is_no_admin_api(pulsar: Target) -> None:
    done = pulsar_txn("transactions", "--admin-url", pulsar.service_url.replace("pulsar", "http"), "list")
    assert done.returncode == 69
    assert "Traceback" not in done.stderr


def test_transactions_disabled_is_a_sentence() -> None:
    with OurBroker(conf={"transactionCoordinatorEnabled": "false"}) as broker:
        listed = pulsar_txn("transactions", "--admin-url", broker.admin_url, "list")
        assert listed.returncode == 1
        assert "transactionCoordinatorEnabled=true" in listed.stderr
        sent = pulsar_txn("produce", "--url", broker.service_url, "t", "-t", "x")
        assert sent.returncode == 1
        assert "Traceback" not in sent.stderr
