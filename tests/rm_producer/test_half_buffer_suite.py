"""The half-topic buffer passes the public suite."""

from pulsar_txn.rm_producer.half import HalfTopicTransactionBuffer
from pulsar_txn.rm_producer.testing import TransactionBufferSuite


class TestHalfTopicTransactionBuffer(TransactionBufferSuite):
    factory = HalfTopicTransactionBuffer
