"""Rounds over participants: what was ended and holds a topic back is told once more, and what is not ours is a warning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator_bench import Bench
from raw_client import FULL

from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.cluster.admin import AdminUnreachable
from pulsar_txn.tc_service.doctor.findings import BufferFacts, PendingAckFacts, Status
from pulsar_txn.tc_service.late_write_scans import PARTICIPANTS_PER_SCAN, ClusterScan, LateWriteScans, _ServiceState
from pulsar_txn.wire.ids import LANE_BIT, Participant, Position, TxnAction, TxnId, TxnStatus

TOPIC = Participant("persistent://public/default/t")
ACKS = Participant(TOPIC.topic, "s")
ENDED, OPEN, STRANGER = (TxnId(LANE_BIT | lane, lane) for lane in (1, 2, 3))
OF_BROKERS = TxnId(3, 17)


class Brokers:
    """Statistics as the test says. `requests`: what was asked."""

    def __init__(self) -> None:
        self.max_read: Position = (1, 1)
        self.ongoing: list[TxnId] = []
        self.acks = 0
        self.requests: list[str] = []
        self.known: Mapping[TxnId, Status] = {OF_BROKERS: Status.OPEN}
        self.away = False

    async def buffer(self, topic: str) -> BufferFacts:
        self.requests.append(topic)
        if self.away:
            raise AdminUnreachable("nobody")
        return BufferFacts(topic, "Ready", self.max_read, len(self.ongoing), 0)

    async def pending_acks(self, topic: str, subscription: str) -> PendingAckFacts:
        self.requests.append(subscription)
        return PendingAckFacts(topic, subscription, "Ready", self.acks, 0, 0)

    async def ongoing_transactions(self, topic: str) -> list[TxnId]:
        self.requests.append(f"entries of {topic}")
        return list(self.ongoing)

    async def status(self, txn_id: TxnId) -> Status:
        return self.known.get(txn_id, Status.NOT_KNOWN)


class Service:
    """What the coordinators know."""

    def __init__(self, *touched: Participant) -> None:
        self.touched = list(touched)
        self.statuses = {ENDED: TxnStatus.COMMITTED, OPEN: TxnStatus.OPEN}
        self.has_open = False
        self.told: list[TellParticipant] = []

    def touched_since(self, since_ms: int) -> list[Participant]:
        return self.touched

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        return self.statuses.get(txn_id)

    def is_open_at(self, participant: Participant) -> bool:
        return self.has_open

    def ended_at(self, participant: Participant) -> list[tuple[TxnId, TxnAction]]:
        return [(ENDED, TxnAction.COMMIT)]

    def repeat_end(self, effect: TellParticipant) -> None:
        self.told.append(effect)


async def rounds(late: ClusterScan, count: int) -> None:
    for _ in range(count):
        await late.scan(10**6)


async def test_what_has_ended_here_and_holds_a_topic_back_is_told_once_more_without_a_watermark() -> None:
    brokers, service = Brokers(), Service(TOPIC)
    late = ClusterScan("east", brokers, service)
    brokers.ongoing = [ENDED, OPEN, OF_BROKERS]
    await rounds(late, 1)
    assert service.told == [], "it may be on its way"
    await rounds(late, 1)
    assert service.told == [TellParticipant(ENDED, TOPIC, TxnAction.COMMIT, -1)]
    assert late.cured == 1


async def test_a_topic_that_makes_progress_is_not_read() -> None:
    brokers, service = Brokers(), Service(TOPIC)
    late = ClusterScan("east", brokers, service)
    brokers.ongoing = [OPEN]
    for entry in range(5):
        brokers.max_read = (1, entry)
        await rounds(late, 1)
    assert set(brokers.requests) == {TOPIC.topic}
    brokers.ongoing = []
    await rounds(late, 3)
    assert set(brokers.requests) == {TOPIC.topic}


async def test_a_transaction_that_nobody_knows_is_one_warning_that_names_the_doctor(caplog: Any) -> None:
    brokers, service = Brokers(), Service(TOPIC)
    late = ClusterScan("east", brokers, service)
    brokers.ongoing = [STRANGER, OF_BROKERS]
    await rounds(late, 6)
    assert service.told == []
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"pulsar-txn doctor --topic {TOPIC.topic}" in line
    assert str(STRANGER) in line
    assert str(OF_BROKERS) not in line


async def test_an_end_that_does_not_help_is_a_warning(caplog: Any) -> None:
    brokers, service = Brokers(), Service(TOPIC)
    late = ClusterScan("east", brokers, service)
    brokers.ongoing = [ENDED]
    await rounds(late, 2)
    assert not caplog.records
    await rounds(late, 2)
    assert len(caplog.records) == 1


async def test_of_a_subscription_everything_that_has_ended_there_is_told_once_more_unless_something_is_open(
    caplog: Any,
) -> None:
    brokers, service = Brokers(), Service(ACKS)
    late = ClusterScan("east", brokers, service)
    brokers.acks, service.has_open = 1, True
    await rounds(late, 4)
    assert service.told == []
    service.has_open = False
    await rounds(late, 1)
    assert service.told == [TellParticipant(ENDED, ACKS, TxnAction.COMMIT, -1)]
    await rounds(late, 3)
    assert len(service.told) == 1
    assert "not known here" in caplog.text


async def test_a_round_asks_a_bounded_number_of_times_and_comes_to_everybody() -> None:
    topics = [Participant(f"persistent://public/default/t{number}") for number in range(3 * PARTICIPANTS_PER_SCAN)]
    brokers, service = Brokers(), Service(*topics)
    late = ClusterScan("east", brokers, service)
    for part in range(1, 4):
        await rounds(late, 1)
        assert len(brokers.requests) == part * PARTICIPANTS_PER_SCAN
    assert set(brokers.requests) == {each.topic for each in topics}


async def test_brokers_that_cannot_be_asked_are_asked_in_the_next_round() -> None:
    brokers, service = Brokers(), Service(TOPIC)
    late = ClusterScan("east", brokers, service)
    brokers.ongoing, brokers.away = [ENDED], True
    await rounds(late, 3)
    brokers.away = False
    await rounds(late, 2)
    assert len(service.told) == 1


async def test_the_service_knows_its_participants_and_what_became_of_its_transactions() -> None:
    bench = await Bench("east").start()
    try:
        client, topic = bench.client(), FULL + "out"
        txn = await client.new_txn()
        await client.add_topics(txn, topic)
        await client.end(txn)
        await client.settle()
        left_open = await client.new_txn()
        await client.add_subscriptions(left_open, (topic, "s"))
        service_state = _ServiceState("east", bench.service)
        assert service_state.touched_since(0) == [Participant(topic)]
        assert service_state.touched_since(2**60) == []
        assert _ServiceState("west", bench.service).touched_since(0) == []
        assert service_state.status(txn) is TxnStatus.COMMITTED
        assert service_state.status(TxnId(3, 17)) is None
        assert service_state.ended_at(Participant(topic)) == [(txn, TxnAction.COMMIT)]
        assert service_state.is_open_at(Participant(topic, "s"))
        assert not service_state.is_open_at(Participant(topic))
        service_state.repeat_end(TellParticipant(txn, Participant(topic), TxnAction.COMMIT, -1))
        assert len(bench.clusters["east"].driver.repeats) == 1
        nothing = LateWriteScans(bench.service, {}, bench.service.turn.runtime)
        nothing.start()
        await nothing.close()
    finally:
        await bench.service.close()
        await bench.store.close()
