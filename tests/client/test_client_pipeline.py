"""Consume, process, produce as a loop, on our broker in this process: nothing lost, nothing doubled, poison put aside."""

import asyncio
import functools
import logging
from types import SimpleNamespace

import pytest
from fake_broker import FakeBroker, fake_client

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AccessMode, AsyncClient, CommitOutcomeUnknown, ConsumerType, InitialPosition, TransactionConflict
from pulsar_txn.client._tracebacks import ErrorKinds
from pulsar_txn.client.errors import (
    AlreadyClosed,
    ConnectionLost,
    InvalidConfiguration,
    OperationTimeout,
    ProducerFenced,
    SchemaMismatch,
    TransactionNotFound,
    TransactionOperationFailed,
    TransactionTimedOut,
)
from pulsar_txn.client.loop.lanes import is_blamed
from pulsar_txn.client.loop.options import Poison
from pulsar_txn.client.loop.suspects import FirstMessages, Suspects
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.dead_letters import DeadLetterPolicy, letter_topic
from pulsar_txn.client.txn.coordinators import TransactionCoordinators
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnAction
from pulsar_txn.wire.topics import ASSIGN_TOPIC

EARLIEST = InitialPosition.EARLIEST


@pytest.fixture
async def client():
    async with Standalone(None) as broker, AsyncClient(broker.service_url, initial_backoff=0.01, max_backoff=0.05) as connected:
        yield connected


class World:
    """A topic with numbers, a pipeline that doubles them, and what came out."""

    def __init__(self, client, count, *, kind=ConsumerType.EXCLUSIVE, keys=1, **options):
        self.client = client
        self.count = count
        self.kind = kind
        self.keys = keys
        self.options = options
        self.stop = asyncio.Event()
        self.events = []
        self.batches = []
        self.poison = set()
        self.fail = lambda _numbers: None

    async def run(self):
        source = await self.client.create_producer("in", batching=False)
        for number in range(self.count):
            await source.send(b"%d" % number, key=f"k{number % self.keys}", properties={"n": str(number)})
        self.consumer = await self.client.subscribe("in", "s", consumer_type=self.kind, initial_position=EARLIEST)
        self.target = await self.client.create_producer("out")
        options = {"max_messages": 10, "max_wait": 0.02, "timeout": 10, "stop": self.stop, "observer": self.seen} | self.options
        async with asyncio.timeout(30):
            return await self.client.pipeline(self.consumer, self.handle, **options)

    async def handle(self, batch):
        numbers = [int(message.data) for message in batch]
        self.batches.append(numbers)
        for message in batch:
            self.target.send_nowait(message.data, key=message.key, txn=batch.txn)
        if self.poison & set(numbers):
            raise LookupError(f"cannot do {self.poison & set(numbers)}")
        self.fail(numbers)

    def seen(self, event):
        self.events.append(event.kind)
        done = sum(self.events.count(kind) for kind in ("dead_letter", "skipped"))
        self.settled = getattr(self, "settled", 0) + (len(event.messages) if event.kind == "committed" else 0)
        if self.settled + done >= self.count:
            self.stop.set()

    async def output(self):
        reader = await self.client.create_reader("out")
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next(5)).data)
        return [int(data) for data in found]

    async def left(self):
        """What the subscription still has."""
        await self.consumer.close()
        again = await self.client.subscribe("in", "s", consumer_type=self.kind)
        return [int(message.data) for message in await again.receive_many(1, max_wait=0.1)]


async def test_everything_goes_through_once_in_order_in_few_transactions(client):
    world = World(client, 35)
    result = await world.run()
    assert await world.output() == list(range(35))
    assert await world.left() == []
    assert (result.messages, result.aborted, result.dead_lettered, result.skipped) == (35, 0, 0, 0)
    assert result.committed < 35
    assert client.transactions() == ()


async def test_stop_is_answered_at_once_and_what_was_taken_is_finished(client):
    world = World(client, 5, max_wait=20.0)
    world.fail = lambda _numbers: world.stop.set()
    async with asyncio.timeout(10):
        running = asyncio.create_task(world.run())
        await asyncio.sleep(0.3)
        world.stop.set()
        result = await running
    assert result.messages in (0, 5)
    assert await world.output() == list(range(result.messages))


@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED, ConsumerType.KEY_SHARED])
async def test_a_handler_that_fails_now_and_then_loses_and_doubles_nothing(client, kind):
    world = World(client, 40, kind=kind, max_aborts=100)
    calls = []

    def now_and_then(numbers):
        calls.append(numbers)
        if len(calls) % 3 == 1:
            raise ConnectionResetError("a database of a user")

    world.fail = now_and_then
    result = await world.run()
    assert await world.output() == list(range(40))
    assert result.aborted > 0
    assert await world.left() == []


@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.FAILOVER, ConsumerType.SHARED, ConsumerType.KEY_SHARED])
@pytest.mark.parametrize("part", [slice(None), slice(3, 5)], ids=["all", "some"])
async def test_what_a_handler_gives_back_before_it_fails_comes_again_and_is_settled_once(client, kind, part):
    """The loop tried the batch again itself, without the messages' acknowledgement, and the broker delivered them again."""
    world = World(client, 40, kind=kind)
    given = []

    async def handle(batch):
        await original(batch)
        if len(given) < 3:
            given.append(batch)
            batch.consumer.give_back(batch.messages[part])
            raise ConnectionResetError("somebody else should do these")

    original, world.handle = world.handle, handle
    result = await world.run()
    assert sorted(await world.output()) == list(range(40))
    assert result.aborted == 3
    assert await world.left() == []


async def test_aborts_by_conflicts_are_ordinary(client):
    """Another consumer of the subscription has taken a message in a transaction that ends meanwhile."""
    world = World(client, 20, kind=ConsumerType.SHARED)
    rival = []

    async def handle(batch):
        if not rival:
            rival.append(await client.begin_transaction(timeout=10))
            other = await client.subscribe("in", "s", consumer_type=ConsumerType.SHARED)
            await other.acknowledge(batch[3].message_id, txn=rival[0])
            asyncio.get_running_loop().call_later(0.2, lambda: asyncio.ensure_future(rival[0].commit()))
            await other.close()
            world.count -= 1
        await original(batch)

    original, world.handle = world.handle, handle
    result = await world.run()
    assert result.aborted >= 1
    assert sorted(await world.output()) == [number for number in range(20) if number != 3]
    assert await world.left() == []


@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED])
async def test_a_poison_message_is_found_and_its_dead_letter_says_where_it_came_from(client, kind):
    world = World(client, 30, kind=kind, max_aborts=2)
    world.poison = {13}
    dead = await client.subscribe("in-s-DLQ", "look", initial_position=EARLIEST)
    result = await world.run()
    assert sorted(await world.output()) == [number for number in range(30) if number != 13]
    letter = await dead.receive(5)
    assert (letter.data, letter.key, letter.txn_id is not None) == (b"13", "k0", True)
    said = letter.properties
    assert (said["REAL_TOPIC"], said["REAL_SUBSCRIPTION"], said["n"]) == ("persistent://public/default/in", "s", "13")
    assert said["EXCEPTION"] == "LookupError: cannot do {13}"
    assert int(said["ABORTS"]) >= 2
    assert said["ORIGIN_MESSAGE_ID"]
    assert (result.dead_lettered, result.messages) == (1, 29)
    assert await dead.receive_many(1, max_wait=0.1) == []
    assert await world.left() == []
    assert len([numbers for numbers in world.batches if 13 in numbers]) <= 8  # halved, not tried one by one


@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED])
async def test_dead_letters_are_kept_where_nobody_had_subscribed(kind):
    """They went to a topic without a subscription, so the next trim took the only copy of each."""
    config = BrokerConfig(managed_ledger_max_entries_per_ledger=1)
    async with Standalone(port=0, config=config) as broker, AsyncClient(broker.service_url) as client:
        world = World(client, 20, kind=kind, max_aborts=1)
        world.poison = set(range(1, 20))
        result = await world.run()
        assert (result.dead_lettered, await world.left()) == (19, [])
        topic = broker.broker.topics["persistent://public/default/in-s-DLQ"]
        for _ in range(3):  # a cut, then what is before it goes
            topic.sweep()
            await asyncio.sleep(0.05)
        letters = await client.subscribe("in-s-DLQ", "dead-letters")
        assert sorted(int(each.data) for each in await letters.receive_many(19, max_wait=5)) == list(range(1, 20))


async def test_no_subscription_is_made_for_letters_when_the_program_says_so(client):
    world = World(client, 2, max_aborts=1, initial_subscription=None)
    world.poison = {1}
    assert (await world.run()).dead_lettered == 1
    letters = await client.subscribe("in-s-DLQ", "dead-letters")  # made now, after the letter
    assert await letters.receive_many(1, max_wait=0.2) == []


async def test_a_name_that_the_subscription_of_letters_cannot_have_is_refused_at_once(client):
    consumer = await client.subscribe("in", "s")
    for wrong in (5, "a\x00b"):
        with pytest.raises(InvalidConfiguration):
            await client.pipeline(consumer, asyncio.sleep, initial_subscription=wrong)
        with pytest.raises(InvalidConfiguration):
            DeadLetterPolicy(max_redeliver_count=1, initial_subscription=wrong)


@pytest.mark.parametrize("policy", [Poison.DEAD_LETTER, Poison.SKIP])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED, ConsumerType.KEY_SHARED])
async def test_a_pipeline_whose_first_ten_messages_all_fail_stops_with_the_error(client, kind, lanes, policy):
    """A misspelled name in the handler took all inputs away, as dead letters or skipped, and nobody heard of it."""
    world = World(client, 30, kind=kind, keys=7, concurrency=lanes, max_aborts=2, on_poison=policy)

    def misspelled(_numbers):
        raise NameError("name 'autput' is not defined")

    world.fail = misspelled
    with pytest.raises(NameError, match="autput") as raised:
        await world.run()
    assert "the first 10 messages all failed" in raised.value.__notes__[0]
    removed = world.events.count("dead_letter") + world.events.count("skipped")
    assert removed == 9 if lanes == 1 else removed <= 9  # other lanes are cancelled
    assert await world.output() == []
    await world.consumer.close()
    again = await client.subscribe("in", "s", consumer_type=kind)
    left = await again.receive_many(30, max_wait=0.5)
    assert len(left) >= 21
    if policy is Poison.DEAD_LETTER:
        letters = await client.subscribe("in-s-DLQ", "dead-letters")
        kept = await letters.receive_many(30, max_wait=0.3)
        assert sorted(int(each.data) for each in [*left, *kept]) == list(range(30))


@pytest.mark.parametrize("good", [0, 25])
async def test_a_pipeline_goes_on_past_ten_poison_messages_once_one_has_worked(client, good):
    """With one in the whole batch that works it never sees ten that fail first, wherever that one is."""
    world = World(client, 30, max_aborts=1, max_messages=30, max_wait=1.0)
    world.poison = set(range(30)) - {good}
    if good:
        with pytest.raises(LookupError):
            await world.run()
        return
    result = await world.run()
    assert (result.dead_lettered, result.messages) == (29, 1)


async def test_a_message_that_comes_again_counts_once_among_the_first_that_fail():
    first = FirstMessages()
    message = SimpleNamespace(topic="t", entry=SimpleNamespace(position=(1, 1)), index=0)
    assert not any(first.all_fail(message) for _ in range(100))
    others = [SimpleNamespace(topic="t", entry=SimpleNamespace(position=(2, number)), index=0) for number in range(9)]
    assert [first.all_fail(each) for each in others] == [False] * 8 + [True]
    first.worked()
    assert not first.all_fail(message)


@pytest.mark.parametrize("policy", [Poison.RAISE, Poison.DEAD_LETTER])
async def test_a_handler_that_acknowledges_itself_stops_with_its_error_as_any_other(client, policy):
    """The broker had to deliver its messages again, and for those no policy was asked."""
    world = World(client, 12, kind=ConsumerType.SHARED, max_aborts=1, max_messages=1, on_poison=policy)

    async def handle(batch):
        await batch.consumer.acknowledge(batch[0], txn=batch.txn)
        raise NameError("nmae")

    world.handle = handle
    with pytest.raises(NameError):
        await world.run()


@pytest.mark.parametrize(("poison", "sizes"), [(0, 10), (499, 4)])
@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED])
async def test_the_group_that_shrinks_is_tried_at_once(client, monkeypatch, kind, poison, sizes):
    """Each halving waited for the back-off, which doubled: a poison message at the front of 500 held them up for minutes."""
    world = World(client, 500, kind=kind, max_messages=500, max_wait=0.2)
    world.poison = {poison}
    pauses, rest = [], Core.rest

    async def counted(core, seconds):
        pauses.append(world.batches[-1])
        await rest(core, seconds)

    monkeypatch.setattr(Core, "rest", counted)
    result = await world.run()
    assert (result.messages, result.dead_lettered) == (499, 1)
    assert [len(batch) for batch in pauses if len(batch) == 1] == [1, 1]  # alone, three times: nothing left to halve
    whole = [len(batch) for batch in pauses if len(batch) > 1]
    assert len(whole) == 2  # the whole group, three times, before it is suspected
    failed = [len(batch) for batch in world.batches if poison in batch]
    assert len(set(failed)) >= sizes - 1  # the groups in between, which had no pause


async def test_a_failure_that_halving_cannot_explain_is_tried_again_after_a_pause(client, monkeypatch):
    world = World(client, 8, max_aborts=1, max_messages=8, max_wait=0.2)
    pauses, rest, calls = [], Core.rest, []

    async def counted(core, seconds):
        pauses.append(world.batches[-1])
        await rest(core, seconds)

    def away(numbers):
        calls.append(numbers)
        if len(calls) <= 5:
            raise ConnectionLost("a broker that is away")

    monkeypatch.setattr(Core, "rest", counted)
    world.fail = away
    result = await world.run()
    assert (result.messages, result.dead_lettered) == (8, 0)
    assert len(pauses) == result.aborted == 5


async def test_poison_can_be_skipped(client):
    world = World(client, 12, on_poison=Poison.SKIP, max_aborts=1)
    world.poison = {0, 11}
    result = await world.run()
    assert (result.skipped, result.dead_lettered) == (2, 0)
    assert await world.output() == list(range(1, 11))
    assert await world.left() == []


async def test_poison_can_end_the_pipeline_with_the_handlers_error(client):
    world = World(client, 8, on_poison=Poison.RAISE, max_aborts=1)
    world.poison = {5}
    with pytest.raises(LookupError, match="cannot do") as raised:
        await world.run()
    assert "failed" in raised.value.__notes__[0]
    assert await world.output() == [0, 1, 2, 3, 4]
    assert await world.left() == [5]


async def test_a_dead_letter_topic_of_ones_own(client):
    world = World(client, 3, dead_letter_topic="morgue", max_aborts=1)
    world.poison = {1}
    dead = await client.subscribe("morgue", "look", initial_position=EARLIEST)
    await world.run()
    assert (await dead.receive(5)).data == b"1"
    assert await world.output() == [0, 2]


async def test_a_dead_letter_that_cannot_be_written_stays_a_message(client):
    """Another producer has the topic to itself; the message is neither lost nor acknowledged meanwhile."""
    world = World(client, 3, dead_letter_topic="morgue", max_aborts=1)
    world.poison = {1}
    holder = await client.create_producer("morgue", access_mode=AccessMode.EXCLUSIVE)
    asyncio.get_running_loop().call_later(0.5, lambda: asyncio.ensure_future(holder.close()))
    dead = await client.subscribe("morgue", "look", initial_position=EARLIEST)
    result = await world.run()
    assert result.dead_lettered == 1
    assert (await dead.receive(5)).data == b"1"
    assert await world.output() == [0, 2]


@pytest.mark.parametrize("kind", [ConsumerType.KEY_SHARED, ConsumerType.SHARED, ConsumerType.EXCLUSIVE])
async def test_lanes_work_at_once_and_keep_the_order_of_each_key(client, kind):
    world = World(client, 60, kind=kind, keys=7, concurrency=4, max_aborts=50)
    at_once, most, calls = 0, 0, 0

    async def handle(batch):
        nonlocal at_once, most, calls
        at_once += 1
        calls += 1
        most = max(most, at_once)
        failing = calls % 4 == 2
        try:
            await asyncio.sleep(0.01)
            if failing:
                raise ConnectionResetError("now and then")
            await original(batch)
        finally:
            at_once -= 1

    original, world.handle = world.handle, handle
    await world.run()
    output = await world.output()
    assert sorted(output) == list(range(60))
    if kind is ConsumerType.EXCLUSIVE:
        assert output == list(range(60))
        return
    assert most > 1
    if kind is ConsumerType.KEY_SHARED:
        for key in range(7):
            assert [n for n in output if n % 7 == key] == list(range(key, 60, 7))


async def aborts_by_itself(end_txn, txn_id):
    """The transaction's time was over, and what it had acknowledged comes again before anybody here knows of it."""
    await end_txn(txn_id, TxnAction.ABORT)
    await asyncio.sleep(0.2)
    raise TransactionNotFound("there is no such transaction")


async def cannot_be_reached(_end_txn, _txn_id):
    """The coordinator."""
    raise OperationTimeout("not reached in time")


@pytest.mark.parametrize(("what_happens", "times"), [(aborts_by_itself, 1), (cannot_be_reached, 4)], ids=["aborted", "away"])
@pytest.mark.parametrize(
    ("kind", "lanes"), [(ConsumerType.EXCLUSIVE, 1), (ConsumerType.KEY_SHARED, 1), (ConsumerType.KEY_SHARED, 2)]
)
async def test_nothing_overtakes_a_group_whose_transaction_was_aborted_after_it_was_acknowledged(
    client, monkeypatch, kind, lanes, what_happens, times
):
    """The random faults of `tests/faults` found it, in 7 of about 125 runs: the keys' order was lost."""
    struck = []
    end_txn = TransactionCoordinators.end_txn

    async def ends(coordinators, txn_id, action, **how):
        if len(ended) == 2 and not struck:
            struck.append(txn_id)
        if txn_id in struck and struck.count(txn_id) <= times:
            struck.append(txn_id)
            await what_happens(functools.partial(end_txn, coordinators, **how), txn_id)
        ended.append(txn_id)
        await end_txn(coordinators, txn_id, action, **how)

    ended = []
    monkeypatch.setattr(TransactionCoordinators, "end_txn", ends)
    world = World(client, 60, kind=kind, keys=3, concurrency=lanes, max_messages=6, max_aborts=50)
    await world.run()
    assert len(struck) == times + 1
    output = await world.output()
    assert sorted(output) == list(range(60))
    for key in range(3):
        assert [n for n in output if n % 3 == key] == list(range(key, 60, 3))
    assert await world.left() == []


async def test_an_error_of_one_lane_ends_all_of_them(client):
    world = World(client, 40, kind=ConsumerType.SHARED, concurrency=3, on_poison=Poison.RAISE, max_aborts=1)
    world.poison = {7}
    with pytest.raises(LookupError):
        await world.run()
    output = await world.output()
    assert len(output) == len(set(output))
    assert 7 not in output


@pytest.mark.parametrize("error", [ProducerFenced("a successor writes"), AlreadyClosed("the producer was closed")])
async def test_what_no_further_attempt_mends_ends_the_pipeline(client, error):
    world = World(client, 3)

    def fail(_numbers):
        raise error

    world.fail = fail
    with pytest.raises(type(error)):
        await world.run()
    assert await world.output() == []
    assert await world.left() == [0]


async def test_a_rollback_of_the_handler_counts_as_a_failure_of_it(client):
    world = World(client, 2, on_poison=Poison.SKIP, max_aborts=2)

    async def handle(batch):
        if batch[0].data == b"0":
            batch.txn.rollback()
        await original(batch)

    original, world.handle = world.handle, handle
    result = await world.run()
    assert (result.skipped, await world.output()) == (1, [1])


async def test_a_cancelled_pipeline_leaves_its_messages_to_the_next_one(client):
    world = World(client, 4)
    started = asyncio.Event()

    async def handle(batch):
        started.set()
        await asyncio.sleep(60)

    world.handle = handle
    running = asyncio.create_task(world.run())
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await world.output() == []
    assert await world.left() == [0]


async def test_the_first_abort_of_each_kind_is_a_warning_with_its_traceback_and_repeats_are_counted(client, caplog):
    """An abort was at INFO, as "name 'x' is not defined": with the ordinary settings of logging nothing was to be seen."""
    world = World(client, 12, max_messages=1, max_aborts=12)
    failing = {3: NameError, 5: LookupError}

    def fails(numbers):
        error = failing.get(numbers[0])
        if error is not None and world.events.count("aborted") < 15:
            raise error(f"cannot do {numbers[0]}")

    world.fail = fails
    with caplog.at_level("INFO", "pulsar_txn.client.pipeline"):
        await world.run()
    aborts = [record for record in caplog.records if "was aborted" in record.getMessage()]
    warnings = [record for record in aborts if record.levelname == "WARNING"]
    assert len(aborts) == 15
    assert [record.exc_info is not None for record in warnings] == [True, False, True]
    first, tenth, other = (record.getMessage() for record in warnings)
    assert "persistent://public/default/in on, was aborted: NameError: cannot do 3" in first
    assert "NameError, number 10 of its kind: cannot do 3" in tenth
    assert "LookupError: cannot do 5" in other
    assert "in fails" in caplog.text  # the traceback reaches the line of the handler
    assert "raise error(f" in caplog.text


def test_kinds_of_errors_are_told_apart_by_class_and_line_and_do_not_pile_up(caplog, monkeypatch):
    monkeypatch.setattr("pulsar_txn.client._tracebacks.MOST_KINDS", 2)
    kinds, logger = ErrorKinds(), logging.getLogger("kinds")

    def fails(cls, line):
        if line:
            raise cls("a")
        raise cls("b")

    def raised(cls, line):
        with pytest.raises(cls) as caught:
            fails(cls, line)
        return caught.value

    for cls, line in [(KeyError, 0), (KeyError, 1), (KeyError, 0), (ValueError, 0), (KeyError, 1)]:
        kinds.tell(logger, "failed", raised(cls, line))
    kinds.tell(logger, "failed", ValueError("never raised"))
    assert len(caplog.records) == 5  # the third is the second of its kind, and the fifth was forgotten
    assert all(record.exc_info for record in caplog.records)


async def test_an_observer_that_fails_disturbs_nothing(client, caplog):
    world = World(client, 3)
    original = world.seen

    def observer(event):
        original(event)
        raise ZeroDivisionError

    world.options["observer"] = observer
    result = await world.run()
    assert result.messages == 3
    assert "the observer" in caplog.text


@pytest.mark.parametrize("options", [{"max_messages": 0}, {"concurrency": 0}, {"max_aborts": 0}, {"timeout": -1}])
async def test_arguments_are_checked(client, options):
    consumer = await client.subscribe("t", "s")
    with pytest.raises(InvalidConfiguration):
        await client.pipeline(consumer, print, **options)


# --- commits without an answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["committed", "aborted", "unknown"])
async def test_a_commit_without_an_answer_is_resolved_before_the_pipeline_goes_on(outcome):
    broker = FakeBroker()
    broker.partitions[ASSIGN_TOPIC] = 1
    broker.keeps_outcomes = outcome == "aborted"  # else a refused repeat says nothing
    stop, handled = asyncio.Event(), []

    def end(pipe, body):
        number = len(broker.all("endTxn"))
        if number == 1:
            pipe.cut()
            return None
        fields = {"request_id": body.request_id}
        if number == 2 or outcome == "unknown":
            fields |= {"error": int(ServerError.TransactionNotFound), "message": "forgotten"}
        elif number == 3 and outcome == "aborted":
            fields |= {"error": int(ServerError.InvalidTxnStatus), "message": "was aborted"}
            deliver_again(pipe, body)  # as a broker does after the abort
        return command("endTxnResponse", **fields)

    async def handler(batch):
        handled.append([message.data for message in batch])

    def observer(event):
        if event.kind == "committed":
            stop.set()

    def deliver_again(_pipe, _body):
        for entry in range(2):
            broker.deliver(1, entry, b"%d" % entry)

    broker.on["endTxn"] = end
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        deliver_again(None, None)
        options = {"max_messages": 2, "max_wait": 1, "stop": stop, "observer": observer}
        async with asyncio.timeout(10):
            if outcome == "unknown":
                with pytest.raises(CommitOutcomeUnknown) as raised:
                    await client.pipeline(consumer, handler, **options)
                assert "forgotten" in raised.value.__notes__[0]
            elif outcome == "committed":
                result = await client.pipeline(consumer, handler, **options)
                assert (result.committed, result.aborted) == (1, 0)
            else:
                result = await client.pipeline(consumer, handler, **options)
                assert result.aborted == 1
    assert handled == [[b"0", b"1"]] * (2 if outcome == "aborted" else 1)


# --- small parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (ValueError("x"), True),
        (SchemaMismatch("x"), True),
        (TransactionTimedOut("x"), True),
        (TransactionConflict("x"), False),
        (ConnectionLost("x"), False),
        (TransactionNotFound("x"), False),
        (CommitOutcomeUnknown("x"), False),
        (TransactionOperationFailed("x"), False),
    ],
)
def test_only_what_a_handler_did_is_blamed_on_its_messages(error, blamed):
    assert is_blamed(error) is blamed
    failed = TransactionOperationFailed("of several", failures=[error])
    assert is_blamed(failed) is blamed


def test_the_dead_letter_topic_is_of_the_whole_topic():
    assert letter_topic("persistent://a/b/t-partition-3", "s") == "persistent://a/b/t-s-DLQ"
    assert letter_topic("t", "s") == "persistent://public/default/t-s-DLQ"


async def test_a_subscription_with_a_slash_has_no_dead_letter_topic_of_its_own_and_that_is_said_at_once(client):
    """It was tried for ever to make a producer for `t-a/b-DLQ`, and the poison message stayed."""
    consumer = await client.subscribe("t", "a/b")
    with pytest.raises(InvalidConfiguration, match=r"has a slash.*dead_letter_topic="):
        await client.pipeline(consumer, lambda _batch: None)
    with pytest.raises(InvalidConfiguration, match=r"has a slash.*dead_letter_topic="):
        await client.subscribe(
            "t", "c/d", consumer_type=ConsumerType.SHARED, dead_letter_policy=DeadLetterPolicy(max_redeliver_count=1)
        )
    retrying = DeadLetterPolicy(max_redeliver_count=1, retry=True, dead_letter_topic="dead")
    with pytest.raises(InvalidConfiguration, match=r"RETRY.*retry_letter_topic="):
        await client.subscribe("t", "c/d", consumer_type=ConsumerType.SHARED, dead_letter_policy=retrying)


class Place:
    def __init__(self, number):
        self.topic, self.index = "t", -1
        self.entry = self
        self.position = (1, number)


@pytest.mark.parametrize("poison", [0, 7, 250, 499])
def test_halving_finds_one_message_of_500_in_about_ten_aborts(poison):
    suspects, pending, aborts, found = Suspects(3), [Place(number) for number in range(500)], 0, []
    while pending:
        group = suspects.next_group(pending)
        if not any(place.position[1] == poison for place in group):
            suspects.forget(group)
            pending = pending[len(group) :]
            continue
        aborts += 1
        if suspects.failed(group):
            found += [place.position[1] for place in group]
            pending = pending[len(group) :]
    assert found == [poison]
    assert aborts <= 14


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_handler_that_raises_cancelled_error_ends_the_pipeline(client, concurrency):
    """With several lanes its lane ended in silence, and the pipeline waited for messages that nobody worked on."""
    world = World(client, 20, kind=ConsumerType.SHARED, concurrency=concurrency)

    def cancelled(_numbers):
        raise asyncio.CancelledError

    world.fail = cancelled
    with pytest.raises(asyncio.CancelledError):
        await world.run()
    assert await world.left() != []
