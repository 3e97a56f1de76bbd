"""The in-topic buffer passes the public suite, also with a snapshot after every transaction."""

from functools import partial

from pulsar_txn.rm_producer import TopicTransactionBuffer
from pulsar_txn.rm_producer.testing import TransactionBufferSuite


class TestTopicTransactionBuffer(TransactionBufferSuite):
    factory = TopicTransactionBuffer


class TestTopicTransactionBufferWithEagerSnapshots(TransactionBufferSuite):
    factory = partial(TopicTransactionBuffer, snapshot_interval_transactions=1)
