"""Nanoseconds per operation of the hand-written codecs, and how many times as long protobuf takes for the same.

    python bench/codec.py [--rounds N]

Both variants of a row run in turns in one process, and the least of all rounds counts, so that the ratio
means something on a busy machine too; the nanoseconds do only on an idle one.
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from crc32c import crc32c

from pulsar_txn.wire import batches, entries, hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import TxnId

TXN = TxnId(3, 70_000)
ENTRY = entries.encode_entry(
    pb.MessageMetadata(
        producer_name="standalone-0-1",
        sequence_id=12_345,
        publish_time=1_700_000_000_000,
        num_messages_in_batch=100,
        highest_sequence_id=12_444,
        txnid_least_bits=TXN.least,
        txnid_most_bits=TXN.most,
    ),
    bytes(1024),
)
Row = tuple[str, int, Callable[[], Any], Callable[[], Any]]


def _framed(command: pb.BaseCommand, entry: bytes = b"") -> bytes:
    body = command.SerializeToString()
    return struct.pack(">II", len(body) + 4 + len(entry), len(body)) + body


def _parsed(frame: bytes) -> pb.BaseCommand:
    return pb.BaseCommand.FromString(frame[4 : 4 + int.from_bytes(frame[:4])])


def _commands() -> list[Row]:
    send = b"".join(hot.encode_send(1, 12_345, 100, ENTRY, txn=TXN))[4:]
    receipt = hot.encode_send_receipt(1, 12_345, 77, 54_321, highest_sequence_id=12_444)[4:]
    message = b"".join(hot.encode_message(1, 77, 54_321, ENTRY))[4:]
    ack = hot.encode_ack(1, False, [(77, 54_321, None, 0)], txn=TXN, request_id=12_345)[4:]
    many = [(77, entry_id, None, 0) for entry_id in range(100)]
    acks = hot.encode_ack(1, False, many)[4:]
    flow = hot.encode_flow(1, 500)[4:]
    answer = hot.encode_ack_response(1, 12_345)[4:]
    return [
        ("SEND encode", 1, lambda: hot.encode_send(1, 12_345, 100, ENTRY, txn=TXN), _pb_encode_send),
        ("SEND decode", 1, lambda: hot.decode_send(send), lambda: _pb_send(send)),
        ("SEND_RECEIPT encode", 1, lambda: hot.encode_send_receipt(1, 12_345, 77, 54_321), _pb_encode_receipt),
        ("SEND_RECEIPT decode", 1, lambda: hot.decode_send_receipt(receipt), lambda: _pb_receipt(receipt)),
        ("MESSAGE encode", 1, lambda: hot.encode_message(1, 77, 54_321, ENTRY), _pb_encode_message),
        ("MESSAGE decode", 1, lambda: hot.decode_message(message), lambda: _pb_message(message)),
        ("ACK encode", 1, lambda: hot.encode_ack(1, False, many[:1], txn=TXN, request_id=9), lambda: _pb_encode_ack(many[:1])),
        ("ACK decode", 1, lambda: hot.decode_ack(ack), lambda: _pb_ack(ack)),
        ("ACK of 100 encode, per id", 100, lambda: hot.encode_ack(1, False, many), lambda: _pb_encode_ack(many)),
        ("ACK of 100 decode, per id", 100, lambda: hot.decode_ack(acks), lambda: _pb_ack(acks)),
        ("ACK_RESPONSE encode", 1, lambda: hot.encode_ack_response(1, 12_345), _pb_encode_answer),
        ("ACK_RESPONSE decode", 1, lambda: hot.decode_ack_response(answer), lambda: _pb_answer(answer)),
        ("FLOW encode", 1, lambda: hot.encode_flow(1, 500), _pb_encode_flow),
        ("FLOW decode", 1, lambda: hot.decode_flow(flow), lambda: _pb_flow(flow)),
        ("entry header read", 1, lambda: entries.read_header(ENTRY), _pb_header),
    ]


def _pb_encode_send() -> bytes:
    send = pb.CommandSend(
        producer_id=1, sequence_id=12_345, num_messages=100, txnid_least_bits=TXN.least, txnid_most_bits=TXN.most
    )
    return _framed(pb.BaseCommand(type=6, send=send), ENTRY)


def _pb_send(frame: bytes) -> tuple[Any, ...]:
    send = _parsed(frame).send
    txn = None
    if send.HasField("txnid_least_bits") and send.HasField("txnid_most_bits"):
        txn = TxnId(send.txnid_most_bits, send.txnid_least_bits)
    highest = send.highest_sequence_id if send.HasField("highest_sequence_id") else None
    end = 4 + int.from_bytes(frame[:4])
    return send.producer_id, send.sequence_id, send.num_messages, txn, highest, send.is_chunk, send.marker, frame[end:]


def _pb_encode_receipt() -> bytes:
    place = pb.MessageIdData(ledgerId=77, entryId=54_321)
    receipt = pb.CommandSendReceipt(producer_id=1, sequence_id=12_345, message_id=place, highest_sequence_id=0)
    return _framed(pb.BaseCommand(type=7, send_receipt=receipt))


def _pb_receipt(frame: bytes) -> tuple[Any, ...]:
    receipt = _parsed(frame).send_receipt
    place = receipt.message_id
    return receipt.producer_id, receipt.sequence_id, place.ledgerId, place.entryId, receipt.highest_sequence_id


def _pb_encode_message() -> bytes:
    place = pb.MessageIdData(ledgerId=77, entryId=54_321, partition=-1)
    return _framed(pb.BaseCommand(type=9, message=pb.CommandMessage(consumer_id=1, message_id=place)), ENTRY)


def _pb_message(frame: bytes) -> tuple[Any, ...]:
    message = _parsed(frame).message
    place = message.message_id
    epoch = message.consumer_epoch if message.HasField("consumer_epoch") else None
    head = (message.consumer_id, place.ledgerId, place.entryId, place.partition, message.redelivery_count)
    return *head, tuple(message.ack_set), epoch, frame[4 + int.from_bytes(frame[:4]) :]


def _pb_encode_ack(ids: list[tuple[int, int, None, int]]) -> bytes:
    ack = pb.CommandAck(consumer_id=1, ack_type=0, txnid_least_bits=TXN.least, txnid_most_bits=TXN.most, request_id=9)
    for ledger_id, entry_id, _, _ in ids:
        ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    return _framed(pb.BaseCommand(type=10, ack=ack))


def _pb_ack(frame: bytes) -> tuple[Any, ...]:
    ack = _parsed(frame).ack
    ids = [(place.ledgerId, place.entryId, tuple(place.ack_set) or None, place.batch_size) for place in ack.message_id]
    txn = None
    if ack.HasField("txnid_least_bits") and ack.HasField("txnid_most_bits"):
        txn = TxnId(ack.txnid_most_bits, ack.txnid_least_bits)
    return ack.consumer_id, ack.ack_type == 1, ids, txn, ack.request_id if ack.HasField("request_id") else None


def _pb_encode_answer() -> bytes:
    return _framed(pb.BaseCommand(type=38, ackResponse=pb.CommandAckResponse(consumer_id=1, request_id=12_345)))


def _pb_answer(frame: bytes) -> tuple[Any, ...]:
    answer = _parsed(frame).ackResponse
    error = answer.error if answer.HasField("error") else None
    message = answer.message if answer.HasField("message") else None
    return answer.consumer_id, answer.request_id if answer.HasField("request_id") else None, error, message


def _pb_encode_flow() -> bytes:
    return _framed(pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=1, messagePermits=500)))


def _pb_flow(frame: bytes) -> tuple[int, int]:
    flow = _parsed(frame).flow
    return flow.consumer_id, flow.messagePermits


def _pb_header() -> Any:
    return entries._header_by_protobuf(bytes(entries.split_entry(ENTRY, verify=False)[0]))  # noqa: SLF001 - the way behind it


def _batches() -> list[Row]:
    size = 200
    shapes: list[tuple[str, list[tuple[Any, ...]]]] = []
    for payload in (bytes(100), bytes(1024)):
        kib = f"{len(payload)} B"
        shapes += [
            (f"{kib}", [(payload,)] * size),
            (f"{kib} sequence id", [(payload, None, None, 0, 12_345 + i) for i in range(size)]),
            (f"{kib} key, property", [(payload, f"k{i}", {"a": "b"}, 0, 12_345 + i) for i in range(size)]),
        ]
    rows: list[Row] = []
    for name, messages in shapes:
        batch = batches.encode_batch(messages)
        rows += [
            (f"batch build, {name}", size, lambda m=messages: batches.encode_batch(m), lambda m=messages: _pb_build(m)),
            (f"batch read, {name}", size, lambda b=batch: batches.decode_batch(b, size), lambda b=batch: _pb_unbatch(b, size)),
        ]
    return rows


def _pb_build(messages: list[tuple[Any, ...]]) -> bytes:
    parts = []
    single = pb.SingleMessageMetadata()
    for message in messages:
        single.Clear()
        single.payload_size = len(message[0])
        if len(message) > 1:
            _, key, properties, _, single.sequence_id = message
            if key is not None:
                single.partition_key = key
            for name, value in (properties or {}).items():
                single.properties.add(key=name, value=value)
        metadata = single.SerializeToString()
        parts += [struct.pack(">I", len(metadata)), metadata, message[0]]
    return b"".join(parts)


def _pb_unbatch(data: bytes, count: int) -> list[tuple[Any, ...]]:
    out: list[tuple[Any, ...]] = []
    position = 0
    for _ in range(count):
        body = position + 4 + int.from_bytes(data[position : position + 4])
        single = pb.SingleMessageMetadata.FromString(data[position + 4 : body])
        position = body + single.payload_size
        properties = {pair.key: pair.value for pair in single.properties} or None
        key = single.partition_key if single.HasField("partition_key") else None
        sequence_id = single.sequence_id if single.HasField("sequence_id") else None
        ordering_key = single.ordering_key if single.HasField("ordering_key") else None
        flags = (single.null_value, single.compacted_out, single.partition_key_b64_encoded)
        out.append((data[body:position], properties, key, single.event_time, sequence_id, ordering_key, *flags))
    return out


def _measure(row: Row, rounds: int) -> tuple[float, float]:
    _, per, hand, proto = row
    calls = max(1, 2000 // per)
    least = [float("inf"), float("inf")]
    for _ in range(rounds):
        for place, function in enumerate((hand, proto)):
            start = time.thread_time_ns()
            for _ in range(calls):
                function()
            least[place] = min(least[place], (time.thread_time_ns() - start) / calls / per)
    return least[0], least[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=30, help="repetitions of each row (default 30)")
    rounds = parser.parse_args().rounds
    print(f"{'operation':36} {'hand ns':>9} {'protobuf ns':>12} {'ratio':>6}")
    for row in [*_commands(), *_batches()]:
        hand, proto = _measure(row, rounds)
        print(f"{row[0]:36} {hand:9.0f} {proto:12.0f} {proto / hand:6.1f}")
    start = time.thread_time_ns()
    for _ in range(1000):
        crc32c(ENTRY)
    print(f"{'(CRC32C of the entry, for scale)':36} {(time.thread_time_ns() - start) / 1000:9.0f}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
