"""What the service says over HTTP: open transactions and where they wait, timelines, clients, metrics, and to whom."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from coordinator_bench import Bench
from raw_client import FULL
from service_admin import admin_of

from pulsar_txn.broker.cli.transactions import lines_of
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.cluster.ends import WaitingEnd
from pulsar_txn.tc_service.server.clusters import of_cluster
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId

IN, OUT = FULL + "in", FULL + "out"
OUT_OF_EAST = {"cluster": "east", "topic": OUT}
IN_OF_EAST = {"cluster": "east", "topic": IN, "subscription": "s"}


@pytest.fixture
async def benches() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*names: str, **config: Any) -> Bench:
        made.append(Bench(*names, **config))
        return made[-1]

    yield make
    for each in made:
        await each.service.close()
        await each.store.close()


async def opened(client: Any) -> TxnId:
    txn: TxnId = await client.new_txn()
    await client.add_topics(txn, "out")
    await client.add_subscriptions(txn, (IN, "s"))
    return txn


def end(client: Any, txn: TxnId, action: TxnAction = TxnAction.COMMIT) -> Any:
    return client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=int(action))


def path(txn: TxnId) -> str:
    return f"{txn.most}/{txn.least}"


async def test_the_shapes_of_pulsars_paths_are_pulsars(benches: Any) -> None:
    bench = await benches("east").start()
    async with admin_of(bench.service) as admin:
        txn = await opened(bench.client())
        assert [each["id"] for each in await admin.get("/coordinators")] == [0, 1]
        stats = await admin.get("/coordinatorStats")
        assert (stats["0"]["state"], stats["0"]["ongoingTxnSize"], stats["1"]["ongoingTxnSize"]) == ("Ready", 1, 0)
        found = await admin.get(f"/transactionMetadata/{path(txn)}")
        assert (found["status"], found["timeoutAt"]) == ("OPEN", 60_000)
        assert found["producedPartitions"] == {f"east|{OUT}": {}}
        assert found["ackedPartitions"] == {f"east|{IN}": {"s": {}}}
        assert found["participants"] == [OUT_OF_EAST, IN_OF_EAST]
        listed = await admin.get("/slowTransactions/0")
        assert list(listed) == [found["txnId"]] == [f"({txn.most},{txn.least})"]
        assert await admin.get(f"/slowTransactions/0?after=({txn.most},{txn.least})") == {}
        status, body = await admin("GET", f"/admin/v3/transactions/transactionMetadata/{txn.most + 1}/{txn.least}")
        assert (status, "is not open" in body["reason"]) == (404, True)
        status, _ = await admin("GET", "/admin/v3/transactions/transactionMetadata/5/1")
        assert status == 404


async def test_an_ending_transaction_names_who_is_not_told_yet_and_why(benches: Any) -> None:
    bench = await benches("east").start()
    east, client = bench.clusters["east"], bench.client()
    async with admin_of(bench.service) as admin:
        txn = await opened(client)
        east.answers = False
        asked = end(client, txn)
        await client.until(lambda: len(east.told) == 2)
        east.driver.waiting_ends[txn, Participant(OUT)] = WaitingEnd(1500, 3, "the broker does not serve it", "unloading")
        first, second = (await admin.get(f"/transactionMetadata/{path(txn)}"))["participants"]
        assert first == OUT_OF_EAST | {
            "state": "waits",
            "waitsMs": 1500,
            "attempts": 3,
            "lastAnswer": "the broker does not serve it",
            "detail": "unloading",
        }
        assert second["state"] == "waits"
        held, east.waiting = east.waiting, []
        held[1]()
        first, second = (await admin.get(f"/transactionMetadata/{path(txn)}"))["participants"]
        assert (first["state"], second["state"], second["attempts"]) == ("waits", "told", 1)
        held[0]()
        await client.answer(asked)


async def test_a_timeline_has_every_step_in_order_with_who_decided_and_how_long_it_took(benches: Any) -> None:
    bench = await benches("east").start()
    client = bench.client()
    async with admin_of(bench.service) as admin:
        txn = await opened(client)
        assert (await admin.timeline(txn))["state"] == "OPEN"
        await client.end(txn)
        await client.settle()
        found = await admin.timeline(txn)
        assert found["state"] == "COMMITTED"
        assert found["isWhole"]
        events = [{name: value for name, value in event.items() if name not in ("at", "afterMs")} for event in found["events"]]
        assert events == [
            {"event": "begun"},
            {"event": "registered", "participants": [OUT_OF_EAST]},
            {"event": "registered", "participants": [IN_OF_EAST]},
            {"event": "decided", "outcome": "commit", "by": "client"},
            {"event": "told", **OUT_OF_EAST, "attempts": 1},
            {"event": "told", **IN_OF_EAST, "attempts": 1},
            {"event": "done"},
        ]
        times = [event["at"] for event in found["events"]]
        assert times == sorted(times)
        assert found["durationsMs"].keys() == {"open", "ending", "whole"}
        status, body = await admin("GET", f"/admin/v3/transactions/timeline/{txn.most}/{txn.least + 1}")
        assert (status, "transactionTimelineCount" in body["reason"]) == (404, True)


async def test_a_timeline_says_which_topics_are_not_there_any_more(benches: Any) -> None:
    """A stock broker takes the end on a deleted topic: the transaction was committed without a message, and nothing said so."""
    bench = await benches("east").start()
    client = bench.client()
    async with admin_of(bench.service) as admin:
        txn = await opened(client)
        bench.clusters["east"].missing.add(OUT)
        await client.end(txn)
        await client.settle()
        found = await admin.timeline(txn)
        assert found["state"] == "COMMITTED"
        told = {event["topic"]: event.get("topicMissing", False) for event in found["events"] if event["event"] == "told"}
        assert told == {OUT: True, IN: False}
        assert "out; there is no such topic now" in "".join(lines_of(found))


async def test_timelines_survive_a_restart_as_far_as_the_log_has_them(benches: Any) -> None:
    bench = await benches("east").start()
    client = bench.client()
    ended, left_open = await opened(client), await opened(client)
    await client.abort(ended)
    await client.settle()
    await bench.crash()
    async with admin_of(bench.service) as admin:
        found = await admin.timeline(ended)
        assert [event["event"] for event in found["events"]] == ["begun", "registered", "registered", "decided", "done"]
        assert found["state"] == "ABORTED"
        assert (await admin.timeline(left_open))["state"] == "OPEN"


async def test_ended_timelines_are_bounded_and_open_ones_stay(benches: Any) -> None:
    bench = await benches("east", transaction_timeline_count=3).start()
    client = bench.client()
    async with admin_of(bench.service) as admin:
        left_open = await opened(client)
        ended = []
        for _ in range(6):
            ended.append(await opened(client))
            await client.end(ended[-1])
        await client.settle()
        found = [(await admin("GET", f"/admin/v3/transactions/timeline/{path(each)}"))[0] for each in ended]
        assert found == [404, 404, 404, 200, 200, 200]
        assert (await admin.timeline(left_open))["state"] == "OPEN"


async def test_a_transaction_is_aborted_over_http_by_an_operator(benches: Any) -> None:
    bench = await benches("east").start()
    client = bench.client()
    async with admin_of(bench.service) as admin:
        txn = await opened(client)
        status, _ = await admin("POST", f"/admin/v3/transactions/abortTransaction/{path(txn)}")
        assert status == 204
        assert [each for *_, each in bench.clusters["east"].ends] == ["ABORT", "ABORT"]
        await client.settle()
        found = await admin.timeline(txn)
        assert found["state"] == "ABORTED"
        (decided,) = (event for event in found["events"] if event["event"] == "decided")
        assert decided["by"] == "operator"
        metrics = await admin.metrics()
        assert metrics['pulsar_txn_service_decisions_total{by="operator",coordinator_id="0",outcome="abort"}'] == 1


async def test_metrics_count_what_the_service_did_once_each(benches: Any) -> None:
    bench = await benches("east", "west").start()
    client = bench.client()
    async with admin_of(bench.service) as admin:
        txn = await client.new_txn()
        await client.request(
            "addPartitionToTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, partitions=[OUT], cluster="west"
        )
        await client.end(txn)
        await client.new_txn()
        await client.settle()
        found = await admin.metrics()
        assert found['pulsar_txn_active_count{coordinator_id="0"}'] == 1
        assert found['pulsar_txn_committed_total{coordinator_id="0"}'] == 1
        assert found['pulsar_txn_service_ends_told_total{cluster="west"}'] == 1
        assert found['pulsar_txn_service_ends_told_total{cluster="east"}'] == 0
        assert found['pulsar_txn_service_lanes_given_total{coordinator_id="0"}'] == 2
        assert found['pulsar_txn_service_decisions_total{by="client",coordinator_id="0",outcome="commit"}'] == 1
        assert found['pulsar_txn_service_append_seconds_count{coordinator_id="0"}'] >= 1
        assert found["pulsar_active_connections"] >= 1
        _, text = await admin("GET", "/metrics")
        helps = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]
        assert len(helps) == len(set(helps)), "Prometheus refuses a name that is explained twice"


async def test_transactions_of_unchanged_clients_are_listed_shown_and_aborted_beside_the_others(benches: Any) -> None:
    bench = await benches("east", front_service_port=0, front_first_transaction=1000).start()
    front = bench.service.front_coordinators
    assert front is not None
    await front.wait_ready()
    got: list[Any] = []
    front.new_txn(1, 60_000, None, None, lambda value, *_: got.append(value))
    of_ours = await opened(bench.client())
    (of_front,) = got
    front.add(of_front, of_cluster("east", [Participant(OUT)]), None, None, lambda *_: None)
    async with admin_of(bench.service) as admin:
        assert of_front == TxnId(1, 1000)
        names = [f"({each.most},{each.least})" for each in (of_front, of_ours)]
        assert list(await admin.get("/slowTransactions/0")) == names
        assert list(await admin.get("/slowTransactions/0?after=(1,1000)")) == names[1:]
        assert (await admin.get(f"/transactionMetadata/{path(of_front)}"))["participants"] == [OUT_OF_EAST]
        assert (await admin("POST", f"/admin/v3/transactions/abortTransaction/{path(of_front)}"))[0] == 204
        story = await admin.timeline(of_front)
        assert (story["state"], story["txnId"]) == ("ABORTED", names[0])
        assert (await admin.timeline(of_ours))["state"] == "OPEN"


async def test_ends_say_what_waits_in_which_cluster(benches: Any) -> None:
    bench = await benches("east", "west").start()
    bench.clusters["west"].driver.topics_held_back = {OUT: 4}
    async with admin_of(bench.service) as admin:
        found = await admin.get("/ends")
        assert found.keys() == {"east", "west"}
        assert found["west"]["heldBack"] == {OUT: 4}


async def test_probes_say_whether_it_serves(benches: Any) -> None:
    bench = await benches("east").start()
    async with admin_of(bench.service) as admin:
        for probe in ("/health", "/ready", "/admin/v2/brokers/health"):
            assert await admin("GET", probe) == (200, "ok")
        bench.service.storage_failure = OSError("gone")
        status, body = await admin("GET", "/health")
        assert (status, "storage failed: gone" in body["reason"]) == (503, True)
        assert (await admin("GET", "/ready"))[0] == 503
        bench.service.storage_failure = None


async def test_pages_of_other_sites_are_not_answered(benches: Any) -> None:
    bench = await benches("east").start()
    async with admin_of(bench.service) as admin:
        status, _ = await admin("GET", "/metrics", {"Host": "evil.example.com"})
        assert status == 403


# ---- the ends that a process before has told once


async def committed(bench: Bench, client: Any) -> TxnId:
    txn = await opened(client)
    await client.end(txn)
    await client.settle()
    return txn


def repeats_of(bench: Bench, cluster: str = "east") -> list[tuple[TellParticipant, float]]:
    return bench.clusters[cluster].driver.repeats


async def test_after_a_crash_the_ends_of_the_last_seconds_are_repeated_without_a_watermark(benches: Any) -> None:
    bench = await benches("east").start()
    txn = await committed(bench, bench.client())
    await bench.crash()
    found = {(each.txn_id, each.participant, each.action, each.low_watermark) for each, _ in repeats_of(bench)}
    assert found == {
        (txn, Participant(OUT), TxnAction.COMMIT, -1),
        (txn, Participant(IN, "s"), TxnAction.COMMIT, -1),
    }
    assert all(30 < seconds <= 40 for _, seconds in repeats_of(bench))
    assert bench.clusters["east"].told == [], "nothing is told as if it were not done"


async def test_a_snapshot_keeps_the_ends_that_are_to_be_repeated(benches: Any) -> None:
    bench = await benches("east").start()
    client = bench.client()
    txn = await committed(bench, client)
    left_open = await opened(client)
    host = bench.service.coordinators.ready(0)
    assert host is not None
    host.take_snapshot("log")
    while host.snapshots.is_under_way:
        host.go_on_with_snapshots()
        await client.settle()
    await client.abort(left_open)  # decided after the snapshot, about what the snapshot has
    await client.settle()
    await bench.crash()
    assert {each.txn_id for each, _ in repeats_of(bench)} == {txn, left_open}
    async with admin_of(bench.service) as admin:
        assert (await admin("GET", f"/admin/v3/transactions/timeline/{path(txn)}"))[0] == 404, "the snapshot took its records"
        found = await admin.timeline(left_open)
        assert (found["state"], found["isWhole"]) == ("ABORTED", False)


async def test_without_a_delay_nothing_is_repeated(benches: Any) -> None:
    bench = await benches("east", transaction_end_repeat_delay_in_seconds=0).start()
    await committed(bench, bench.client())
    await bench.crash()
    assert repeats_of(bench) == []
