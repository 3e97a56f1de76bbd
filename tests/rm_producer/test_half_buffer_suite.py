"""The half-topic buffer passes the public suite."""

import pytest

from pulsar_txn.rm_producer.half import HalfTopicTransactionBuffer
from pulsar_txn.rm_producer.testing import TransactionBufferSuite


@pytest.mark.seed_rows("A06", "A18", "A20", "A29", "A31")
class TestHalfTopicTransactionBuffer(TransactionBufferSuite):
    factory = HalfTopicTransactionBuffer
