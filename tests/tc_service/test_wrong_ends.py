"""Commits that a broker hides, because it knows their id as aborted: an incarnation's first is noticed, the doctor finds all.

Brokers answer "ok" to such a commit, as stock does.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from late_writes import zombie
from official_reading import read_officially
from our_coordinator import OurCoordinator
from targets import Target

from pulsar_txn.broker.cli.group import group
from pulsar_txn.client import AsyncClient
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.cluster.admin import AdminRefused, AdminUnreachable
from pulsar_txn.tc_service.cluster.attempts import Answer, BrokerAttempts
from pulsar_txn.tc_service.doctor.cluster_reading import compare_with_coordinator
from pulsar_txn.tc_service.server.incarnations import FirstCommits
from pulsar_txn.wire.ids import LANE_BIT, Participant, TxnAction, TxnId

TOPIC = "persistent://public/default/t"
BUFFER = "/admin/v3/transactions/transactionInBufferStats/public/default/t"


class FakeAdmin:
    """Answers by path: what is there, 404 for what is not, and an exception is raised. `asked` has the paths."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def get(self, path: str) -> Any:
        self.asked.append(path)
        answer = self.answers.get(path, AdminRefused(404, "not there"))
        if isinstance(answer, Exception):
            raise answer
        return answer


def lane(number: int, coordinator: int = 0) -> int:
    return LANE_BIT | coordinator << 48 | number


def stats(txn_id: TxnId, aborted: bool) -> dict[str, Any]:
    return {f"{BUFFER}/{txn_id.most}/{txn_id.least}": {"aborted": aborted}}


# ---- the first commit of each incarnation


class Service:
    """`FirstCommits` with one cluster whose admin API is made up. Lives are the hundreds of an id."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.admin = FakeAdmin(answers)
        admins: Any = {"east": self.admin}
        lives: Any = SimpleNamespace(incarnation=lambda txn_id: txn_id.least // 100)
        self.commits = FirstCommits(admins, lives)

    async def tell(self, txn_id: TxnId, action: TxnAction = TxnAction.COMMIT, **where: Any) -> None:
        participant = Participant(TOPIC, where.get("subscription"))
        self.commits.told(where.get("cluster", "east"), TellParticipant(txn_id, participant, action, -1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_a_first_commit_that_the_broker_hides_is_an_error_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    hidden = TxnId(lane(7), 3)
    service = Service(stats(hidden, aborted=True))
    with caplog.at_level(logging.ERROR):
        await service.tell(hidden)
    assert service.commits.wrong == 1
    (line,) = caplog.messages
    assert f"{hidden} was committed, and {TOPIC} in the cluster east hides it" in line
    assert "pulsar-txn doctor --coordinator" in line


async def test_one_commit_of_each_life_coordinator_and_kind_of_id_is_looked_at() -> None:
    ids = [TxnId(lane(7), 3), TxnId(lane(8), 4), TxnId(lane(8), 103), TxnId(lane(8, 1), 5), TxnId(1, 6), TxnId(1, 7)]
    service = Service({path: each for txn_id in ids for path, each in stats(txn_id, aborted=False).items()})
    for txn_id in ids:
        await service.tell(txn_id)
    looked_at = [ids[0], ids[2], ids[3], ids[4]]
    assert service.admin.asked == [f"{BUFFER}/{each.most}/{each.least}" for each in looked_at]
    assert service.commits.wrong == 0


async def test_aborts_subscriptions_and_clusters_without_an_admin_api_are_not_looked_at_and_are_no_first_commit() -> None:
    first = TxnId(lane(7), 3)
    service = Service(stats(first, aborted=True))
    await service.tell(first, TxnAction.ABORT)
    await service.tell(first, subscription="s")
    await service.tell(first, cluster="west")
    assert service.admin.asked == []
    await service.tell(first)
    assert service.commits.wrong == 1


@pytest.mark.parametrize("error", [AdminRefused(403, "no"), AdminUnreachable("no admin API answers")])
async def test_what_cannot_be_compared_is_no_wrong_end(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    first = TxnId(lane(7), 3)
    service = Service({f"{BUFFER}/{first.most}/{first.least}": error})
    with caplog.at_level(logging.INFO):
        await service.tell(first)
    assert service.commits.wrong == 0
    assert "could not be compared" in caplog.text


async def test_closing_ends_a_look_that_hangs() -> None:
    service = Service({})
    service.admin.get = lambda _path: asyncio.sleep(3600)  # type: ignore[method-assign]  # one that hangs
    await service.tell(TxnId(lane(7), 3))
    async with asyncio.timeout(5):
        await service.commits.close()


# ---- the doctor, of all that the log remembers


def log_with(*ended: tuple[TxnId, str, dict[str, str]], held: Mapping[str, Any] | None = None) -> FakeAdmin:
    base = "/admin/v3/transactions"
    told = [{"txnId": str(txn_id), "outcome": outcome, "participants": [where]} for txn_id, outcome, where in ended]
    return FakeAdmin({f"{base}/slowTransactions/0?held=true": held or {}, f"{base}/ended": told})


async def found(coordinator: Any, brokers: Any, cluster: str | None = None) -> list[tuple[str, TxnId | None]]:
    return [(each.kind, each.txn_id) for each in await compare_with_coordinator(coordinator, brokers, cluster)]


async def test_every_hidden_commit_is_a_finding_and_nothing_else_is() -> None:
    hidden, seen, aborted, gone = (TxnId(lane(7), least) for least in range(4))
    east = {"cluster": "east", "topic": TOPIC}
    brokers = FakeAdmin(stats(hidden, aborted=True) | stats(seen, aborted=False) | stats(aborted, aborted=True))
    log = log_with((hidden, "commit", east), (seen, "commit", east), (aborted, "abort", east), (gone, "commit", east))
    assert await found(log, brokers) == [("hidden", hidden)]


async def test_participants_of_other_clusters_and_subscriptions_are_not_asked_for() -> None:
    hidden = TxnId(lane(7), 1)
    brokers = FakeAdmin(stats(hidden, aborted=True))
    elsewhere = log_with((hidden, "commit", {"cluster": "west", "topic": TOPIC}))
    assert await found(elsewhere, brokers, "east") == []
    assert await found(elsewhere, brokers, "west") == [("hidden", hidden)]
    acknowledged = log_with((hidden, "commit", {"cluster": "east", "topic": TOPIC, "subscription": "s"}))
    assert await found(acknowledged, brokers) == []


async def test_what_is_held_is_told_with_its_reason_and_both_decisions() -> None:
    txn_id = TxnId(lane(7), 1)
    log = log_with(held={str(txn_id): {"heldBecause": "restored", "openTimestamp": 17}})
    (finding,) = await compare_with_coordinator(log, FakeAdmin({}), None)  # type: ignore[arg-type]  # the made-up ones
    assert (finding.kind, finding.txn_id, finding.since_ms) == ("held", txn_id, 17)
    assert "restored" in finding.what
    assert f"transactions commit {txn_id.most}:{txn_id.least}" in finding.advice


# ---- on stock: somebody else has aborted the id


@pytest.mark.stock
@pytest.mark.timeout(180)
async def test_a_commit_of_an_id_that_somebody_else_aborted_is_told_by_log_metric_and_doctor(
    stock_pulsar: Target, topic: str
) -> None:
    http = OurCoordinator({}).port  # a free one
    conf = {"numberOfTransactionCoordinators": "1", "webServicePort": str(http)}
    conf["cluster.east.adminUrl"] = stock_pulsar.admin_url
    with OurCoordinator({"east": stock_pulsar.service_url}, conf=conf) as beside:
        async with (
            AsyncClient(stock_pulsar.service_url, coordinator=beside.service_url) as client,
            zombie(stock_pulsar) as other,
        ):
            producer = await client.create_producer(topic)
            async with client.transaction() as txn:
                await producer.send(b"hidden", txn=txn)
                assert txn.id is not None
                end = TellParticipant(txn.id, Participant(topic, None), TxnAction.ABORT, -1)
                assert (await BrokerAttempts(other.brokers).attempt(end)).answer is Answer.OK
            await producer.send(b"plain")
            assert await asyncio.to_thread(read_officially, stock_pulsar.service_url, topic, 1) == [b"plain"]
            async with asyncio.timeout(30):
                while "hides it: the broker knows its id as aborted" not in beside.log_tail():  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.1)
            url = f"http://127.0.0.1:{http}"
            answer = await asyncio.to_thread(urllib.request.urlopen, f"{url}/metrics")
            assert "pulsar_txn_service_wrong_ends_total 1" in answer.read().decode()
            cluster = ("--cluster", stock_pulsar.service_url, "--admin-url", stock_pulsar.admin_url)
            command = ["doctor", *cluster, "--topic", topic, "--coordinator", url]
            done = await asyncio.to_thread(CliRunner().invoke, group, command)
            assert done.exit_code == 1, done.stderr
            assert f"hides the transaction {txn.id}, which the coordinator has committed" in done.stdout
