"""What a Java client 4.2.4 and a broker 4.2.4 said to each other is read, and written again to the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from pulsar_txn.wire import batches, entries, frames, hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import TxnAction, TxnId, ack_set_from_words

SHORTENED = {14, 29, 38, 45}
"""Recorded without their middle (schemas of system topics): there is nothing to read."""

OTHER_ORDER = {1, 8}
"""CONNECT of the Java client: it writes fields 1, 5, 3, 4, 10 in this order. Equal messages, other bytes."""


class Captured(NamedTuple):
    number: int
    connection: str
    direction: str
    type: str
    bytes: bytes


def _load() -> list[Captured]:
    lines = (Path(__file__).parent / "data" / "frames.txt").read_text().splitlines()
    rows = [line.split(" ") for line in lines if not line.startswith("#")]
    return [Captured(int(n), c, d, t, b"" if h == "shortened" else bytes.fromhex(h)) for n, c, d, t, h in rows]


ALL = _load()
COMPLETE = [captured for captured in ALL if captured.number not in SHORTENED]


def _of(*types: str) -> list[Captured]:
    return [captured for captured in COMPLETE if captured.type in types]


def _names(captured: object) -> str | None:
    return f"{captured.number}-{captured.type}" if isinstance(captured, Captured) else None


def _frame(captured: Captured) -> bytes:
    return frames.FrameReader().feed(captured.bytes)[0]


def test_the_capture_is_whole_but_for_the_frames_named_here():
    assert [captured.number for captured in ALL] == list(range(1, 186))
    assert {captured.number for captured in ALL if not captured.bytes} == SHORTENED


@pytest.mark.parametrize("captured", COMPLETE, ids=_names)
def test_every_complete_frame_reads_and_writes_back_to_its_bytes(captured: Captured):
    frame = _frame(captured)
    command = frames.decode_command(frame)
    assert pb.BaseCommand.Type.Name(command.type) == captured.type
    assert frames.frame_type(frame) == command.type
    written = frames.encode_command(command)
    command_end = frames.command_end(frame)
    if captured.number in OTHER_ORDER:
        assert written[8:] != frame[4:]
        assert pb.BaseCommand.FromString(written[8:]) == command
    else:
        assert written[4:] == frame[:command_end]
        assert written[:4] == (command_end).to_bytes(4)


def test_the_whole_conversation_in_one_segment_is_cut_into_its_frames():
    stream = b"".join(captured.bytes for captured in COMPLETE)
    assert frames.FrameReader().feed(stream) == [captured.bytes[4:] for captured in COMPLETE]


@pytest.mark.parametrize("captured", _of("SEND"), ids=_names)
def test_send_writes_back_to_its_bytes(captured: Captured):
    producer_id, sequence_id, num_messages, txn, highest, is_chunk, marker, entry = hot.decode_send(_frame(captured))
    buffers = hot.encode_send(
        producer_id,
        sequence_id,
        num_messages,
        entry,
        txn=txn,
        highest_sequence_id=highest,
        is_chunk=is_chunk,
        marker=marker,
    )
    assert b"".join(buffers) == captured.bytes


@pytest.mark.parametrize("captured", _of("SEND_RECEIPT"), ids=_names)
def test_send_receipt_writes_back_to_its_bytes(captured: Captured):
    producer_id, sequence_id, ledger_id, entry_id, highest = hot.decode_send_receipt(_frame(captured))
    assert hot.encode_send_receipt(producer_id, sequence_id, ledger_id, entry_id, highest_sequence_id=highest) == captured.bytes


@pytest.mark.parametrize("captured", _of("MESSAGE"), ids=_names)
def test_message_writes_back_to_its_bytes(captured: Captured):
    consumer_id, ledger_id, entry_id, partition, redelivered, words, epoch, entry = hot.decode_message(_frame(captured))
    buffers = hot.encode_message(
        consumer_id,
        ledger_id,
        entry_id,
        entry,
        partition=partition,
        redelivery_count=redelivered,
        ack_set=ack_set_from_words(words) if words else None,
        batch_size=entries.read_header(entry).num_messages or 0,
        consumer_epoch=epoch,
    )
    assert b"".join(buffers) == captured.bytes


@pytest.mark.parametrize("captured", _of("ACK"), ids=_names)
def test_ack_writes_back_to_its_bytes(captured: Captured):
    consumer_id, cumulative, ids, txn, request_id, key = hot.decode_ack(_frame(captured))
    assert hot.encode_ack(consumer_id, cumulative, ids, txn=txn, request_id=request_id, key=key) == captured.bytes


@pytest.mark.parametrize("captured", _of("ACK_RESPONSE"), ids=_names)
def test_ack_response_writes_back_to_its_bytes(captured: Captured):
    consumer_id, request_id, txn, error, message = hot.decode_ack_response(_frame(captured))
    assert hot.encode_ack_response(consumer_id, request_id, txn=txn, error=error, message=message) == captured.bytes


@pytest.mark.parametrize("captured", _of("FLOW"), ids=_names)
def test_flow_writes_back_to_its_bytes(captured: Captured):
    assert hot.encode_flow(*hot.decode_flow(_frame(captured))) == captured.bytes


@pytest.mark.parametrize("captured", _of("SEND", "MESSAGE"), ids=_names)
def test_entries_carry_a_fitting_checksum_and_write_back_to_their_bytes(captured: Captured):
    decoded = hot.decode_send(_frame(captured)) if captured.type == "SEND" else hot.decode_message(_frame(captured))
    entry = decoded[-1]
    _, payload = entries.split_entry(entry)
    metadata = entries.read_metadata(entry)
    assert entries.encode_entry(metadata, payload) == entry


@pytest.mark.parametrize("number", [74, 76, 94, 127, 151])
def test_batches_write_back_to_their_bytes(number: int):
    captured = next(captured for captured in COMPLETE if captured.number == number)
    frame = _frame(captured)
    entry = (hot.decode_send(frame) if captured.type == "SEND" else hot.decode_message(frame))[-1]
    _, payload = entries.split_entry(entry)
    messages = batches.decode_batch(payload, 3)
    assert [message[4] for message in messages] == [0, 1, 2]
    assert [message[0][-1:] for message in messages] == [b"0", b"1", b"2"]
    assert batches.encode_batch([(message[0], None, None, 0, message[4]) for message in messages]) == bytes(payload)


def test_a_redelivered_batch_names_the_indexes_still_to_be_taken():
    message = hot.decode_message(_frame(ALL[126]))
    assert (message[4], message[5]) == (1, (5,))


def test_a_transactional_batch_carries_its_transaction_in_command_and_metadata():
    send = hot.decode_send(_frame(ALL[93]))
    assert send[3] == TxnId(0, 0) == entries.read_header(send[-1]).txn_id
    assert TxnAction(frames.decode_command(_frame(ALL[120])).endTxn.txn_action) is TxnAction.ABORT
