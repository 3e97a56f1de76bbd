"""Ids as bytes are those of the official client."""

import pulsar as official
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.client import EARLIEST_ID, LATEST_ID, MessageId
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.messages import deserialize_message_id, serialize_message_id

PLACE = st.integers(0, 2**63 - 1)


@given(PLACE, PLACE, st.integers(-1, 1000), st.integers(-1, 1000))
def test_what_one_client_writes_the_other_reads(ledger_id, entry_id, partition, batch_index):
    ours = MessageId(ledger_id, entry_id, partition, batch_index)
    theirs = official.MessageId(partition, ledger_id, entry_id, batch_index)
    read = official.MessageId.deserialize(serialize_message_id(ours))
    assert (read.ledger_id(), read.entry_id(), read.partition(), read.batch_index()) == ours[:4]
    assert deserialize_message_id(theirs.serialize())[:4] == ours[:4]


@pytest.mark.parametrize("message_id", [EARLIEST_ID, LATEST_ID, MessageId(7, 8, 2, 3, 10)])
def test_all_of_an_id_is_kept(message_id):
    assert deserialize_message_id(serialize_message_id(message_id)) == message_id


@pytest.mark.parametrize("data", [b"", b"\xff", b"no id"])
def test_other_bytes_are_refused(data):
    with pytest.raises(InvalidConfiguration, match="no message id"):
        deserialize_message_id(data)
