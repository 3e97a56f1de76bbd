"""Programs written for the official client run on the compat layer, and see the same; each is run with both packages."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import operator
import os
import urllib.request
import uuid
from concurrent.futures.process import BrokenProcessPool

import pulsar as official
import pulsar.asyncio as official_asyncio
import pytest
from compat_asyncio import ASYNCIO_PROGRAMS
from compat_official import Official
from compat_programs import MUST, NO_EFFECT, OTHERS, PARTITIONS, PROGRAMS, SECURED

from pulsar_txn import compat
from pulsar_txn.compat import asyncio as compat_asyncio

ON_STOCK_TOO = [
    "a_message_with_everything",
    "acknowledging",
    "seeking",
    "reading",
    "text_json_and_avro",
    "partitions_and_routing",
    "part_of_a_batch_is_acknowledged",
    "a_table_view",
    "encryption_end_to_end",
]
POSITIONAL = {"service_url", "topic", "subscription_name", "content", "start_message_id"}
EVERY = PROGRAMS | SECURED


def create_partitions(pulsar, topic, count):
    url = f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/partitions"
    request = urllib.request.Request(url, str(count).encode(), {"Content-Type": "application/json"}, method="PUT")
    urllib.request.urlopen(request, timeout=20).close()


def both(name, pulsar, official_says):
    """What the program says with the official package, and with ours, each on a topic of its own."""

    def new_topic():
        topic = f"persistent://public/default/{uuid.uuid4().hex[:12]}"
        if PARTITIONS.get(name):
            create_partitions(pulsar, topic, PARTITIONS[name])
        return topic

    theirs = official_says(name, pulsar.service_url, new_topic)  # both at once
    topic = new_topic()
    if name in ASYNCIO_PROGRAMS:
        mine = asyncio.run(ASYNCIO_PROGRAMS[name](compat, compat_asyncio, pulsar.service_url, topic))
    else:
        mine = PROGRAMS[name](compat, pulsar.service_url, topic)
    return theirs(), repr(mine).replace(topic, "TOPIC")


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ON_STOCK_TOO])
def test_a_program_of_the_official_client_runs_unchanged(pulsar, name, official_says):
    theirs, mine = both(name, pulsar, official_says)
    assert mine == theirs


@pytest.mark.parametrize("name", ON_STOCK_TOO)
def test_a_program_of_the_official_client_runs_unchanged_on_stock_too(pulsar, name, official_says):
    theirs, mine = both(name, pulsar, official_says)
    assert mine == theirs


@pytest.mark.parametrize("name", ASYNCIO_PROGRAMS)
def test_a_program_of_the_official_asyncio_client_runs_unchanged(pulsar, name, official_says):
    theirs, mine = both(name, pulsar, official_says)
    assert mine == theirs


def ends_its_process_once(flag, topic):
    if not flag.exists():
        flag.touch()
        os.abort()
    return topic


def test_a_program_that_ends_its_process_is_run_again_on_another_topic_and_ends_no_test(tmp_path):
    topics = iter(["first", "second"])
    with contextlib.closing(Official()) as says:
        assert says.beside(ends_its_process_once, lambda: (tmp_path / "ended", next(topics)))() == "second"
        with pytest.raises(BrokenProcessPool):
            says.beside(os.abort)()
        assert says.beside(abs, lambda: (-7,))() == 7


@pytest.mark.parametrize("cls", ["Client", "Producer", "Consumer", "Reader"])
def test_the_asyncio_classes_have_the_official_methods_and_arguments(cls):
    theirs, mine = getattr(official_asyncio, cls), getattr(compat_asyncio, cls)
    for name in (name for name in vars(theirs) if not name.startswith("_")):
        expected = list(inspect.signature(getattr(theirs, name)).parameters)
        assert [each for each in inspect.signature(getattr(mine, name)).parameters if each != "txn"] == expected
        if hasattr(inspect, "markcoroutinefunction") or "txn" not in inspect.signature(getattr(mine, name)).parameters:
            assert inspect.iscoroutinefunction(getattr(mine, name)) == inspect.iscoroutinefunction(getattr(theirs, name))


# --- which name is shown by which program ----------------------------------------------------------------------------------


def official_names(place):
    """What the official package has there: parameters of a call, or the public members of a class."""
    if place.endswith("."):
        cls = getattr(official, place[:-1])
        return {name for name in dir(cls) if not name.startswith("_")}
    call = official.Client.__init__ if place == "Client" else operator.attrgetter(place)(official)
    return set(inspect.signature(call).parameters) - {"self"}


@pytest.mark.parametrize("place", OTHERS)
def test_every_name_of_the_official_package_is_sorted(place):
    assert official_names(place) == MUST[place].keys() | OTHERS[place].keys()
    assert not MUST[place].keys() & OTHERS[place].keys()


@pytest.mark.parametrize(("place", "name"), [(place, name) for place in MUST for name in MUST[place]])
def test_a_name_that_must_be_here_has_a_program_that_uses_it(place, name):
    program = EVERY[MUST[place][name]]
    assert name in POSITIONAL or name in inspect.getsource(program)
    there = {"": official, "schema.": official.schema}.get(place)
    assert there is None or (hasattr(there, name) and hasattr({"": compat, "schema.": compat.schema}[place], name))


def test_the_other_names_have_a_program_too_or_a_reason_why_not():
    shown = {reason for names in OTHERS.values() for reason in names.values()} - {NO_EFFECT}
    assert shown <= EVERY.keys()


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_what_has_no_effect_is_warned_of(pulsar):
    wanted = {"Client": pulsar.service_url, "create_producer": "t", "subscribe": "t", "create_reader": "t"}
    client = compat.Client(pulsar.service_url)
    calls = {
        "Client": lambda **dead: compat.Client(wanted["Client"], **dead).close(),
        "Client.create_producer": lambda **dead: client.create_producer("t", **dead).close(),
        "Client.subscribe": lambda **dead: client.subscribe("t", "s", **dead).close(),
        "Client.create_reader": lambda **dead: client.create_reader("t", compat.MessageId.earliest, **dead).close(),
    }
    for place, call in calls.items():
        for name in (name for name, reason in OTHERS[place].items() if reason == NO_EFFECT):
            with pytest.warns(DeprecationWarning, match=f"{name} has no effect") as warned:
                call(**{name: "x" if name.endswith(("path", "prefix")) else name.startswith(("use", "lazy")) or 3})
            assert warned[0].filename == __file__
    client.close()


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_what_the_client_logs_goes_to_the_logger_that_it_was_given_until_it_is_closed(pulsar, topic):
    own, records = logging.getLogger("a-program"), []
    own.addFilter(records.append)
    client = compat.Client(pulsar.service_url, logger=own)
    first = client.create_producer(topic, access_mode=compat.ProducerAccessMode.Exclusive)
    client.create_producer(topic, access_mode=compat.ProducerAccessMode.ExclusiveWithFencing)
    with pytest.raises(compat.ProducerFenced):
        first.send(b"x")
    client.close()
    assert any("refuses to attach again" in record.getMessage() for record in records)
    seen = len(records)
    logging.getLogger("pulsar_txn.client").warning("behind its end")
    assert len(records) == seen


def test_every_exception_has_the_code_that_callbacks_are_told():
    for name, code in official.Result.__members__.items():
        if name != "Ok":
            assert int(getattr(compat, name).result) == int(code)


# --- what the official package has not ----------------------------------------------------------------------------------


def test_a_program_that_came_here_has_transactions(pulsar, topic):
    client = compat.Client(pulsar.service_url)
    source, target = client.create_producer(topic), client.create_producer(f"{topic}-out")
    consumer = client.subscribe(topic, "s", initial_position=compat.InitialPosition.Earliest)
    check = client.subscribe(f"{topic}-out", "s", initial_position=compat.InitialPosition.Earliest)
    for number in range(4):
        source.send(b"%d" % number)
    found = [consumer.receive(10_000) for _ in range(4)]

    with pytest.raises(LookupError), client.transaction() as txn:
        target.send(b"never", txn=txn)
        raise LookupError
    with client.transaction() as txn:
        target.send(b"sent", txn=txn)
        target.send_async(b"queued", None, txn=txn)
        consumer.acknowledge([found[0], found[1].message_id()], txn=txn)
        consumer.acknowledge_cumulative(found[3], txn=txn)
    assert [check.receive(10_000).data() for _ in range(2)] == [b"sent", b"queued"]

    txn = client.begin_transaction()
    with pytest.raises(compat.TransactionConflict):
        consumer.acknowledge(found[0], txn=txn)
    txn.abort()
    consumer.close()
    again = client.subscribe(topic, "s")
    with pytest.raises(compat.Timeout):
        again.receive(300)
    client.close()
