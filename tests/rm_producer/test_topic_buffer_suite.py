"""The in-topic buffer passes the public suite, also with a snapshot after every transaction."""

from functools import partial

import pytest

from pulsar_txn.rm_producer import TopicTransactionBuffer
from pulsar_txn.rm_producer.testing import TransactionBufferSuite


@pytest.mark.seed_rows("D18")
class TestTopicTransactionBuffer(TransactionBufferSuite):
    factory = TopicTransactionBuffer


class TestTopicTransactionBufferWithEagerSnapshots(TransactionBufferSuite):
    factory = partial(TopicTransactionBuffer, snapshot_interval_transactions=1)
