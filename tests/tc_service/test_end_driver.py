"""The driver of ends against scripted brokers: every answer, silence, broken connections, dead brokers, redirects."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fake_broker import SILENCE, FakeBroker, FakeRuntime
from memory_network import VirtualLoop

from pulsar_txn.client.inside import Settings
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.cluster.admin import AdminRefused, AdminUnreachable
from pulsar_txn.tc_service.cluster.attempts import BrokerAttempts
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.tc_service.cluster.ends import EndDriver, Repeats
from pulsar_txn.tc_service.cluster.participants import ClusterRefused, verify_cluster, verify_participant
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId

TOPIC = "persistent://public/default/t-partition-0"
Script = list[Any]


def effect(least: int = 1, topic: str = TOPIC, subscription: str | None = None, **changes: Any) -> TellParticipant:
    fields = {"action": TxnAction.COMMIT, "low_watermark": least} | changes
    return TellParticipant(TxnId(1 << 62, least), Participant(topic, subscription), fields["action"], fields["low_watermark"])


class Cluster:
    """Scripted brokers of a cluster, a driver of its ends, and what came of them. `answers`: taken one after the other."""

    def __init__(self, *addresses: str, url: str | None = None, repeat_after_seconds: float | None = None) -> None:
        self.brokers = {address: FakeBroker(address) for address in addresses or ("b1:6650",)}
        self.answers: dict[str, Script] = defaultdict(list)
        self.told: list[TxnId] = []
        for broker in self.brokers.values():
            for name in ("endTxnOnPartition", "endTxnOnSubscription"):
                broker.on[name] = self._answer(broker, name)
        self.runtime = FakeRuntime(self.brokers)
        settings = Settings(operation_timeout=5, connection_timeout=5)
        self.pool = Brokers("east", url or "pulsar://" + ",".join(self.brokers), settings, self.runtime)
        attempts = BrokerAttempts(self.pool)
        self.driver = EndDriver("east", attempts, self.runtime, repeat_after_seconds=repeat_after_seconds)

    def _answer(self, broker: FakeBroker, name: str) -> Callable[[Any, Any], Any]:
        def answer(pipe: Any, body: Any) -> Any:
            script = self.answers[broker.address]
            what = script.pop(0) if script else None
            if what is SILENCE:
                return SILENCE
            if what == "cut":
                pipe.cut()
                return SILENCE
            fields: dict[str, Any] = {"request_id": body.request_id}
            if what is not None:
                fields |= {"error": int(what), "message": "as the script says"}
            return command(f"{name}Response", **fields)

        return answer

    @property
    def first(self) -> FakeBroker:
        return next(iter(self.brokers.values()))

    def tell(self, *effects: TellParticipant) -> None:
        for each in effects:
            self.driver.tell(each, lambda held, _attempts: self.told.append(held.txn_id))

    async def until_told(self, count: int) -> None:
        while len(self.told) < count:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        await self.driver.close()
        await self.pool.close()


def virtual(story: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Run a story in virtual time; the seconds that passed."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(story(), 3600))
        return loop.time()
    finally:
        loop.close()


def test_an_end_names_the_transaction_the_outcome_and_the_watermark() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.tell(effect(5), effect(6, subscription="s", action=TxnAction.ABORT, low_watermark=-1))
        await cluster.until_told(2)
        (on_topic,) = cluster.first.all("endTxnOnPartition")
        assert (on_topic.txnid_most_bits, on_topic.txnid_least_bits, on_topic.topic) == (1 << 62, 5, TOPIC)
        assert (on_topic.txn_action, on_topic.txnid_least_bits_of_low_watermark) == (TxnAction.COMMIT, 5)
        (on_subscription,) = cluster.first.all("endTxnOnSubscription")
        named = on_subscription.subscription
        assert (named.topic, named.subscription, on_subscription.txn_action) == (TOPIC, "s", TxnAction.ABORT)
        assert on_subscription.HasField("txnid_least_bits_of_low_watermark")  # 4.0.8 closes the connection without it
        assert on_subscription.txnid_least_bits_of_low_watermark == 2**64 - 1
        await cluster.close()

    virtual(story)


@pytest.mark.parametrize(
    ("answer", "at_least"),
    [
        (ServerError.ServiceNotReady, 1.0),
        (ServerError.MetadataError, 1.0),
        (ServerError.PersistenceError, 1.0),
        (ServerError.UnknownError, 1.0),
        (ServerError.TransactionNotFound, 5.0),
        (ServerError.NotAllowedError, 5.0),
        (ServerError.AuthorizationError, 5.0),
        (ServerError.ConsumerBusy, 1.0),
        (SILENCE, 6.0),
        ("cut", 1.0),
    ],
)
def test_after_a_failure_the_owner_is_looked_up_and_the_same_end_is_sent_again(answer: Any, at_least: float) -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.answers["b1:6650"] = [answer]
        cluster.tell(effect())
        await cluster.until_told(1)
        assert cluster.told == [TxnId(1 << 62, 1)]
        first, second = cluster.first.all("endTxnOnPartition")
        second.request_id = first.request_id
        assert first == second
        assert len(cluster.first.all("lookupTopic")) == 2
        assert (cluster.driver.ended, cluster.driver.failed_attempts, cluster.driver.waiting) == (1, 1, 0)
        await cluster.close()

    assert virtual(story) >= at_least


@pytest.mark.parametrize("answer", [ServerError.TopicNotFound, ServerError.SubscriptionNotFound])
def test_a_participant_that_is_gone_needs_nothing(answer: ServerError) -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.answers["b1:6650"] = [answer]
        cluster.tell(effect())
        await cluster.until_told(1)
        assert len(cluster.first.all("endTxnOnPartition")) == 1
        await cluster.close()

    virtual(story)


def test_a_role_that_may_not_end_transactions_raises_an_alarm_at_once_and_is_never_taken_for_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.answers["b1:6650"] = [ServerError.TransactionNotFound] * 20
        cluster.tell(effect())
        await asyncio.sleep(300)
        assert cluster.told == []
        assert cluster.driver.waiting == 1
        assert cluster.driver.alarms == 4  # after 1, 2, 4 and 8 attempts
        assert cluster.driver.failing_topics() == {TOPIC: 12}
        cluster.answers.clear()  # somebody has put the role into superUserRoles
        await cluster.until_told(1)
        await cluster.close()

    with caplog.at_level(logging.ERROR, "pulsar_txn.tc_service.ends"):
        virtual(story)
    assert "superUserRoles" in caplog.text
    assert "east" in caplog.text


def test_what_passes_by_itself_raises_an_alarm_after_ten_attempts() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.answers["b1:6650"] = [ServerError.ServiceNotReady] * 9
        cluster.tell(effect())
        await cluster.until_told(1)
        assert cluster.driver.alarms == 0
        cluster.answers["b1:6650"] = [ServerError.ServiceNotReady] * 10
        cluster.tell(effect(2))
        await cluster.until_told(2)
        assert cluster.driver.alarms == 1
        await cluster.close()

    virtual(story)


def test_a_topic_that_does_not_answer_gets_one_attempt_at_a_time_and_holds_no_other_up() -> None:
    async def story() -> None:
        cluster = Cluster()
        other = TOPIC.replace("-0", "-1")

        def end(_pipe: Any, body: Any) -> Any:
            return command("endTxnOnPartitionResponse", request_id=body.request_id) if body.topic == other else SILENCE

        cluster.first.on["endTxnOnPartition"] = end
        cluster.tell(*(effect(least) for least in range(1, 1001)))
        await asyncio.sleep(60)
        silent = len(cluster.first.all("endTxnOnPartition"))
        assert silent <= 64 + 60 / 6 + 1
        cluster.tell(*(effect(least, other) for least in range(1, 1001)))
        await cluster.until_told(1000)
        assert cluster.driver.failing_topics().keys() == {TOPIC}
        del cluster.first.on["endTxnOnPartition"]
        cluster.first.on["endTxnOnPartition"] = cluster._answer(cluster.first, "endTxnOnPartition")
        await cluster.until_told(2000)
        assert set(Counter(cluster.told).values()) == {2}  # each once per topic
        await cluster.close()

    virtual(story)


def lookup_answer(body: Any, url: str, response: int, *, authoritative: bool) -> bytes:
    fields = {"brokerServiceUrl": url, "response": response, "authoritative": authoritative}
    return command("lookupTopicResponse", request_id=body.request_id, **fields)


def test_the_longest_walk_copies_authoritative_and_ends_at_the_broker_of_the_last_answer() -> None:
    async def story() -> None:
        cluster = Cluster("b1:6650", "b2:6650", url="pulsar://b1:6650")
        b1, b2 = cluster.brokers.values()

        def at_b1(_pipe: Any, body: Any) -> bytes:
            if body.authoritative:
                return lookup_answer(body, "pulsar://b1:6650", 1, authoritative=True)
            return lookup_answer(body, "pulsar://b2:6650", 0, authoritative=False)

        b1.on["lookupTopic"] = at_b1
        b2.on["lookupTopic"] = lambda _pipe, body: lookup_answer(body, "pulsar://b1:6650", 0, authoritative=True)
        cluster.tell(effect())
        await cluster.until_told(1)
        assert [body.authoritative for body in b1.all("lookupTopic")] == [False, True]
        assert [body.authoritative for body in b2.all("lookupTopic")] == [False]
        assert len(b1.all("endTxnOnPartition")) == 1
        await cluster.close()

    virtual(story)


def test_redirects_without_an_end_are_given_up_after_ten_hops_and_tried_again() -> None:
    async def story() -> None:
        cluster = Cluster()
        broker = cluster.first
        count = 0

        def in_circles(_pipe: Any, body: Any) -> bytes:
            nonlocal count
            count += 1
            return lookup_answer(body, "pulsar://b1:6650", 1 if count > 10 else 0, authoritative=True)

        broker.on["lookupTopic"] = in_circles
        cluster.tell(effect())
        await cluster.until_told(1)
        assert count == 11
        assert cluster.driver.failed_attempts == 1
        await cluster.close()

    virtual(story)


def test_the_broker_that_took_the_last_end_is_told_the_next_one_without_a_lookup() -> None:
    async def story() -> None:
        cluster = Cluster()
        for least in range(1, 6):
            cluster.tell(effect(least))
            await cluster.until_told(least)
        assert [body.txnid_least_bits for body in cluster.first.all("endTxnOnPartition")] == [1, 2, 3, 4, 5]
        assert len(cluster.first.all("lookupTopic")) == 1
        cluster.tell(effect(6, TOPIC.replace("-0", "-1")))  # nothing is known of another topic
        await cluster.until_told(6)
        assert len(cluster.first.all("lookupTopic")) == 2
        cluster.first.pipe.cut()
        cluster.tell(effect(7))
        await cluster.until_told(7)
        assert len(cluster.first.all("lookupTopic")) == 3
        await cluster.close()

    virtual(story)


def test_an_end_at_a_broker_that_has_lost_the_topic_goes_on_at_its_new_owner_without_a_pause() -> None:
    async def story() -> None:
        cluster = Cluster("b1:6650", "b2:6650", url="pulsar://b1:6650")
        b1, b2 = cluster.brokers.values()
        b1.on["lookupTopic"] = lambda _pipe, body: lookup_answer(body, f"pulsar://{owner}", 1, authoritative=True)
        owner = "b1:6650"
        cluster.tell(effect(1))
        await cluster.until_told(1)
        owner = "b2:6650"
        cluster.answers["b1:6650"] = [ServerError.ServiceNotReady] * 9
        began = asyncio.get_running_loop().time()
        cluster.tell(effect(2))
        await cluster.until_told(2)
        assert asyncio.get_running_loop().time() - began < 0.5
        assert [body.txnid_least_bits for body in b2.all("endTxnOnPartition")] == [2]
        cluster.tell(effect(3))
        await cluster.until_told(3)
        assert len(b1.all("endTxnOnPartition")) == 2, "a broker that refused is not told again without a lookup"
        assert (len(b1.all("lookupTopic")), cluster.driver.failed_attempts) == (2, 0)
        await cluster.close()

    virtual(story)


@pytest.mark.parametrize("answer", [ServerError.ServiceNotReady, ServerError.PersistenceError, SILENCE])
def test_a_known_owner_that_takes_no_end_is_told_again_after_a_pause_and_a_lookup_that_names_it(answer: Any) -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.tell(effect(1))
        await cluster.until_told(1)
        cluster.answers["b1:6650"] = [answer] * 3
        began = asyncio.get_running_loop().time()
        cluster.tell(effect(2))
        await cluster.until_told(2)
        assert asyncio.get_running_loop().time() - began >= 1 + 2 + 4
        assert len(cluster.first.all("endTxnOnPartition")) == 5, "during an unload no end follows another one at once"
        assert len(cluster.first.all("lookupTopic")) >= 4
        await cluster.close()

    virtual(story)


def test_when_the_owner_named_is_dead_another_broker_is_asked_until_one_names_an_owner_that_lives() -> None:
    async def story() -> None:
        cluster = Cluster("b1:6650", "b2:6650")
        b1, b2 = cluster.brokers.values()
        b1.refuses = True
        asked: list[float] = []

        def at_b2(_pipe: Any, body: Any) -> bytes:
            asked.append(asyncio.get_running_loop().time())
            owner = "b1:6650" if asked[-1] < 30 else "b2:6650"  # until the dead one's session has expired
            return lookup_answer(body, f"pulsar://{owner}", 1, authoritative=True)

        b2.on["lookupTopic"] = at_b2
        cluster.tell(effect())
        await cluster.until_told(1)
        assert len(b2.all("endTxnOnPartition")) == 1
        assert len(asked) > 5
        await cluster.close()

    assert 30 <= virtual(story) < 34


def test_a_broker_learned_from_lookups_is_asked_when_the_only_host_of_the_service_url_dies() -> None:
    async def story() -> None:
        cluster = Cluster("b1:6650", "b2:6650", url="pulsar://b1:6650")
        b1, b2 = cluster.brokers.values()
        for broker in (b1, b2):
            broker.on["lookupTopic"] = lambda _pipe, body: lookup_answer(body, "pulsar://b2:6650", 1, authoritative=True)
        cluster.tell(effect(1))
        await cluster.until_told(1)
        b1.refuses = True
        b1.pipe.cut()
        cluster.tell(effect(2, TOPIC.replace("-0", "-1")))
        await cluster.until_told(2)
        assert len(b2.all("lookupTopic")) == 1
        await cluster.close()

    virtual(story)


def test_at_a_standalone_broker_behind_its_loopback_address_ends_go_through_the_address_that_was_asked() -> None:
    async def story() -> None:
        cluster = Cluster()

        def through(_pipe: Any, body: Any) -> bytes:
            fields = {"brokerServiceUrl": "pulsar://inside:6650", "response": 1, "authoritative": True}
            return command("lookupTopicResponse", request_id=body.request_id, proxy_through_service_url=True, **fields)

        cluster.first.on["lookupTopic"] = through
        cluster.tell(effect())
        await cluster.until_told(1)
        assert {body.proxy_to_broker_url for body in cluster.first.all("connect")} == {"", "inside:6650"}
        assert cluster.runtime.connects == ["b1:6650", "b1:6650"]
        await cluster.close()

    virtual(story)


@pytest.mark.parametrize(
    ("ends", "connects", "words", "passes"),
    [
        (None, None, None, None),
        (None, ServerError.TransactionCoordinatorNotFound, None, None),  # another broker has this coordinator
        (None, ServerError.NotAllowedError, "transactions off.*transactionCoordinatorEnabled=true", False),
        (ServerError.TransactionNotFound, None, "superUserRoles", False),
        (ServerError.ServiceNotReady, None, "does not serve", True),
    ],
)
def test_a_cluster_takes_part_when_it_has_transactions_and_lets_us_end_them(
    ends: Any, connects: Any, words: str | None, passes: bool | None
) -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.answers["b1:6650"] = [ends]
        refusal = {} if connects is None else {"error": int(connects), "message": "no"}
        cluster.first.on["tcClientConnectRequest"] = lambda _pipe, body: command(
            "tcClientConnectResponse", request_id=body.request_id, **refusal
        )
        attempts = BrokerAttempts(cluster.pool)
        if words is None:
            await verify_cluster(cluster.pool, attempts)
        else:
            with pytest.raises(ClusterRefused, match=words) as refused:
                await verify_cluster(cluster.pool, attempts)
            assert refused.value.passes is passes
        await cluster.close()

    virtual(story)


def test_an_end_is_told_once_more_after_the_longest_send_timeout_and_nobody_hears_of_it() -> None:
    async def story() -> None:
        cluster = Cluster(repeat_after_seconds=40)
        cluster.tell(effect(1), effect(2, subscription="s", action=TxnAction.ABORT))
        await cluster.until_told(2)
        await asyncio.sleep(39)
        assert len(cluster.first.all("endTxnOnPartition")) == 1
        cluster.answers["b1:6650"] = [ServerError.ServiceNotReady]  # what is repeated is tried until it is taken
        await asyncio.sleep(1000)
        for name in ("endTxnOnPartition", "endTxnOnSubscription"):
            first, *more = cluster.first.all(name)
            assert 1 <= len(more) <= 2
            for each in more:
                assert each.txnid_least_bits_of_low_watermark == 2**64 - 1, "a repeat aborts nothing that is below it"
                each.request_id = first.request_id
                each.txnid_least_bits_of_low_watermark = first.txnid_least_bits_of_low_watermark
                assert each == first
        assert (len(cluster.told), cluster.driver.ended, cluster.driver.waiting) == (2, 2, 0)
        await cluster.close()

    virtual(story)


def ends_told(cluster: Cluster) -> list[int]:
    """The transactions of all ends at the topic, in order."""
    return [body.txnid_least_bits for body in cluster.first.all("endTxnOnPartition")]


async def answered_end(cluster: Cluster, least: int) -> None:
    """The end of a transaction of which nothing can come late."""
    cluster.driver.all_answered(effect(least).txn_id)
    cluster.tell(effect(least))
    await cluster.until_told(least)


def test_an_end_after_answers_to_everything_is_not_repeated_at_a_topic_that_stays_where_it_is() -> None:
    async def story() -> None:
        cluster = Cluster(repeat_after_seconds=40)
        cluster.tell(effect(1))
        await cluster.until_told(1)
        await asyncio.sleep(100)
        await answered_end(cluster, 2)
        cluster.tell(effect(3))
        await cluster.until_told(3)
        await asyncio.sleep(100)
        assert ends_told(cluster) == [1, 1, 2, 3, 3]
        assert (cluster.driver.repeated, cluster.driver.spared, cluster.driver.to_repeat) == (2, 1, 0)
        await cluster.close()

    virtual(story)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("what", [ServerError.ServiceNotReady, ServerError.UnknownError, "cut", "moved"])
def test_an_end_after_answers_to_everything_is_repeated_where_the_topic_was_not_quiet(what: Any, before: bool) -> None:
    """A broker that loads a topic amid its ends has answered "ok" and held the topic back all the same, once."""

    async def trouble(cluster: Cluster) -> None:
        if what == "moved":
            cluster.first.pipe.cut()  # the next end finds the topic with another connection
        else:
            cluster.answers["b1:6650"] = [what]
        cluster.tell(effect(9))
        await asyncio.sleep(10)

    async def story() -> None:
        cluster = Cluster(repeat_after_seconds=40)
        cluster.tell(effect(1))
        await cluster.until_told(1)
        await asyncio.sleep(100)
        if before:
            await trouble(cluster)
        cluster.driver.all_answered(effect(2).txn_id)
        cluster.tell(effect(2))
        await asyncio.sleep(10)
        if not before:
            await trouble(cluster)
        await asyncio.sleep(200)
        assert ends_told(cluster).count(2) == 2
        assert cluster.driver.spared == 0
        await cluster.close()

    virtual(story)


def test_what_may_have_been_troubled_is_never_spared_however_many_topics_there_are() -> None:
    repeats = Repeats(1000)
    for number in range(10_001):
        repeats.note_failure(f"t{number}", number)
    repeats.add(effect(1, "t0"), 1000, all_answered=True)
    repeats.add(effect(2, "t0"), 1001, all_answered=True)
    assert [each.txn_id.least for each in repeats.due(3000)] == [1], "the topic that is forgotten was troubled at 0"
    repeats.add(effect(3, "t10000"), 11_000, all_answered=True)
    repeats.add(effect(4, "t10000"), 11_001, all_answered=True)
    assert [each.txn_id.least for each in repeats.due(20_000)] == [3]
    repeats.add(effect(5), 30_000, all_answered=True)
    repeats.add_due(effect(6), 31_000)
    assert [each.txn_id.least for each in repeats.due(40_000)] == [6], "of a process before this one nothing is known"


def test_many_repeats_keep_their_order_and_are_bounded_in_number() -> None:
    repeats = Repeats(1000, most=10)
    for least in range(30):
        repeats.add(effect(least), least)
    assert [each.txn_id.least for each in repeats.due(0)] == list(range(20))
    assert repeats.next_ms == 1020
    assert [each.txn_id.least for each in repeats.due(1024)] == [20, 21, 22, 23, 24]
    assert len(repeats) == 5


def test_after_close_nothing_is_tried_and_nobody_is_told() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.answers["b1:6650"] = [ServerError.ServiceNotReady, SILENCE]
        cluster.tell(effect(1), effect(2))
        await asyncio.sleep(3)
        await cluster.driver.close()
        sent = len(cluster.first.all("endTxnOnPartition"))
        told = len(cluster.told)
        cluster.tell(effect(3))
        await asyncio.sleep(100)
        assert (len(cluster.first.all("endTxnOnPartition")), len(cluster.told)) == (sent, told)
        await cluster.close()

    virtual(story)


def test_many_thousand_ends_at_a_dead_cluster_cost_no_task_each() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.first.refuses = True
        topics = [f"persistent://public/default/t-partition-{index}" for index in range(10)]
        for least in range(1, 501):
            cluster.tell(*(effect(least, topic) for topic in topics))
        await asyncio.sleep(20)
        assert cluster.driver.waiting == 5_000
        assert len(asyncio.all_tasks()) < 40
        cluster.first.refuses = False
        await cluster.until_told(5_000)
        assert cluster.driver.waiting == 0
        await cluster.close()

    virtual(story)


@pytest.mark.parametrize("code", [ServerError.TransactionNotFound, ServerError.AuthorizationError])
def test_a_role_that_is_refused_is_shown_again_by_a_new_connection_and_not_for_each_refusal(code: ServerError) -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.answers["b1:6650"] = [code] * 40
        cluster.tell(*(effect(least, topic=f"{TOPIC}-{least}") for least in range(1, 21)))
        await cluster.until_told(20)
        before = len(cluster.first.all("connect"))
        assert 2 <= before <= 6  # forty refusals, some at the same time
        cluster.tell(effect(100))
        await cluster.until_told(21)
        assert len(cluster.first.all("connect")) == before
        await cluster.close()

    virtual(story)


def test_very_many_ends_that_are_due_after_a_restart_are_repeated_a_bounded_number_at_a_time() -> None:
    async def story() -> None:
        cluster = Cluster(repeat_after_seconds=40)
        for least in range(1, 1001):
            cluster.driver.repeat(effect(least), 0)
        assert cluster.driver.to_repeat == 1000
        most_at_once = 0
        while cluster.driver.to_repeat:
            before = cluster.driver.to_repeat
            await asyncio.sleep(0.001)
            most_at_once = max(most_at_once, before - cluster.driver.to_repeat)
        while cluster.driver.waiting:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.01)
        assert 0 < most_at_once <= 512
        assert cluster.driver.repeated == 1000
        assert cluster.told == []
        ends = cluster.first.all("endTxnOnPartition")
        assert {each.txnid_least_bits_of_low_watermark for each in ends} == {2**64 - 1}
        await cluster.close()

    virtual(story)


class DeafAdmin:
    """An admin API that does not take our credentials."""

    url = "http://b1:8080"

    async def get(self, path: str) -> Any:
        raise AdminRefused(401, "<html>who are you?</html>")


def test_an_admin_api_that_refuses_the_coordinator_is_no_fault_of_the_participant() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.first.on["partitionMetadata"] = lambda _pipe, body: command(
            "partitionMetadataResponse", request_id=body.request_id, partitions=0, response=0
        )
        with pytest.raises(AdminUnreachable, match="does not accept the coordinator's credentials"):
            await verify_participant(cluster.pool, Participant(TOPIC, "s"), DeafAdmin())  # type: ignore[arg-type]  # it is asked once
        await cluster.close()

    virtual(story)
