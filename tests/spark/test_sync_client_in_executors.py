"""The blocking client in functions that Spark's executors run."""

from __future__ import annotations

from typing import Any

import pytest
from our_broker import OurBroker

from pulsar_txn.client import InitialPosition, sync
from pulsar_txn.client.errors import UsageError


@pytest.fixture(scope="module")
def url() -> Any:
    with OurBroker() as broker:
        yield broker.service_url


def test_each_partition_is_sent_in_a_transaction_by_a_client_made_in_the_executor(spark: Any, url: str) -> None:
    def send(rows: Any) -> None:
        with sync.Client(url) as client:
            producer = client.create_producer("numbers")
            with client.transaction() as txn:
                for row in rows:
                    producer.send_nowait(b"%d" % row, txn=txn)

    spark.sparkContext.parallelize(range(40), 4).foreachPartition(send)
    with sync.Client(url) as client:
        consumer = client.subscribe("numbers", "s", initial_position=InitialPosition.EARLIEST)
        assert sorted(int(consumer.receive(10).data) for _ in range(40)) == list(range(40))


def test_a_client_of_the_driver_does_not_travel_and_says_what_to_do(spark: Any, url: str) -> None:
    with sync.Client(url) as client:
        producer = client.create_producer("numbers")
        with pytest.raises(Exception, match="create the client in the process that uses it") as raised:
            spark.sparkContext.parallelize([1]).foreach(lambda row: producer.send(b"%d" % row))
    assert isinstance(raised.value, UsageError) or "UsageError" in str(raised.value)
