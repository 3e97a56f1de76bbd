"""A scripted Pulsar broker in memory, and the runtime that connects a client to it.

It answers what a healthy broker answers; a test replaces single answers in `on` and reads what came in from `got`.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import encode_batch
from pulsar_txn.wire.entries import encode_entry, split_entry
from pulsar_txn.wire.frames import FrameReader, command, command_end, decode_command, frame_type
from pulsar_txn.wire.ids import TxnAction, TxnId

SILENCE = object()
"""What a handler returns to say nothing."""


class Pipe(asyncio.Transport):
    """The client's end of an in-memory connection."""

    def __init__(self, broker: FakeBroker, protocol: asyncio.Protocol, address: str) -> None:
        super().__init__()
        self.broker = broker
        self.protocol = protocol
        self.address = address
        self.writes: list[bytes] = []
        self.is_open = True
        self._reader = FrameReader()
        self._loop = asyncio.get_running_loop()

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, data: Iterable[Any]) -> None:
        whole = b"".join(data)
        self.writes.append(whole)
        self._loop.call_soon(self._to_broker, whole)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return not self.is_open

    def send(self, data: bytes) -> None:
        """Bytes from the broker."""
        self._loop.call_soon(self._to_client, data)

    def cut(self, error: Exception | None = None) -> None:
        """The connection breaks."""
        if self.is_open:
            self.is_open = False
            self._loop.call_soon(self.protocol.connection_lost, error)

    def _to_client(self, data: bytes) -> None:
        if self.is_open:
            self.protocol.data_received(data)

    def _to_broker(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            self.broker.on_frame(self, frame)


class FakeRuntime:
    """A `Runtime` whose connections lead to fake brokers by address; `refuse` holds addresses where nobody listens."""

    def __init__(self, brokers: dict[str, FakeBroker]) -> None:
        self.brokers = brokers
        self.secrets = 0
        self.connects: list[str] = []

    async def connect(self, factory, host, port, *, ssl_context, server_hostname):
        address = f"{host}:{port}"
        self.connects.append(address)
        broker = self.brokers.get(address)
        if broker is None or broker.refuses:
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = factory()
        pipe = Pipe(broker, protocol, address)
        broker.pipes.append(pipe)
        protocol.connection_made(pipe)
        return protocol

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def random(self) -> float:
        return 0.5

    def secret(self, count: int) -> bytes:
        self.secrets += 1
        return self.secrets.to_bytes(count, "big")

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay, callback, *args)


class FakeBroker:
    """One broker. `on[name]` is `handler(pipe, body)` returning frames (or SILENCE); hot commands give their tuples."""

    def __init__(self, address: str = "broker:6650") -> None:
        self.address = address
        self.refuses = False
        self.partitions: dict[str, int] = defaultdict(int)
        self.pipes: list[Pipe] = []
        self.got: list[tuple[str, Any]] = []
        self.permits: dict[int, int] = defaultdict(int)
        self.entries = 0
        self.txns = 0
        self.on: dict[str, Callable[[Pipe, Any], Any]] = {}
        self.keeps_outcomes = False
        self.knows_checks = False
        """Whether it has check groups, prepared transactions and early answers, as our broker does."""

    # --- what tests use -----------------------------------------------------------------------------------------

    @property
    def pipe(self) -> Pipe:
        """The newest connection."""
        return self.pipes[-1]

    def all(self, name: str) -> list[Any]:
        """Every command of this name that came in."""
        return [body for what, body in self.got if what == name]

    def say(self, name: str, **fields: Any) -> None:
        """Send a command on the newest connection."""
        self.pipe.send(command(name, **fields))

    @property
    def producer_id(self) -> int:
        """The id of the newest producer."""
        return int(self.all("producer")[-1].producer_id)

    @property
    def consumer_id(self) -> int:
        """The id of the newest consumer."""
        return int(self.all("subscribe")[-1].consumer_id)

    def ask(self, group: str, txn_id: TxnId, data: bytes = b"", pipe: Pipe | None = None, **fields: Any) -> None:
        """Send a TXN_CHECK on a connection, the newest without one."""
        bits = {"txnid_most_bits": txn_id.most, "txnid_least_bits": txn_id.least}
        (pipe or self.pipe).send(command("txnCheck", group=group, check_data=data, **bits, **fields))

    @property
    def check_answers(self) -> list[tuple[TxnId, int]]:
        """What members have answered, in order."""
        found = self.all("txnCheckResponse")
        return [(TxnId(body.txnid_most_bits, body.txnid_least_bits), int(body.outcome)) for body in found]

    def receipt(self, sequence_id: int, entry_id: int) -> None:
        """Send a receipt to the newest producer."""
        self.pipe.send(hot.encode_send_receipt(self.producer_id, sequence_id, 1, entry_id))

    def deliver(self, ledger_id: int, entry_id: int, *payloads: bytes, **fields: Any) -> None:
        """Send a MESSAGE to the newest consumer: one payload, or a batch of several."""
        ack_set = fields.pop("ack_set", None)
        epoch = fields.pop("epoch", None)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=entry_id, publish_time=1, **fields)
        payload = payloads[0]
        if len(payloads) > 1:
            metadata.num_messages_in_batch = len(payloads)
            payload = encode_batch([(each,) for each in payloads])
        entry = encode_entry(metadata, payload)
        frame = hot.encode_message(
            self.consumer_id, ledger_id, entry_id, entry, ack_set=ack_set, batch_size=len(payloads), consumer_epoch=epoch
        )
        self.pipe.send(b"".join(frame))

    async def until(self, condition: Callable[[], Any], seconds: float = 3.0) -> None:
        """Wait until something has come to pass."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - a test's condition has no event of its own
                await asyncio.sleep(0.001)

    # --- what it does -------------------------------------------------------------------------------------------

    def on_frame(self, pipe: Pipe, frame: bytes) -> None:
        name, body = self._decode(frame)
        self.got.append((name, body))
        handler = self.on.get(name) or getattr(self, f"_{name}", None)
        answer = None if handler is None else handler(pipe, body)
        if answer is not None and answer is not SILENCE:
            pipe.send(answer)

    def _decode(self, frame: bytes) -> tuple[str, Any]:
        kind = frame_type(frame)
        if kind == 6:
            return "send", hot.decode_send(frame)
        if kind == 10:
            return "ack", hot.decode_ack(frame)
        cmd = decode_command(frame)
        name = next(field.name for field in cmd.DESCRIPTOR.fields if field.number == kind)
        return name, getattr(cmd, name)

    def _connect(self, _pipe, _body):
        flags = {"keeps_transaction_outcomes": self.keeps_outcomes, "supports_checks": self.knows_checks}
        size = 5 * 1024 * 1024
        return command("connected", server_version="Fake", protocol_version=21, max_message_size=size, feature_flags=flags)

    def _ping(self, _pipe, _body):
        return command("pong")

    def _partitionMetadata(self, _pipe, body):  # noqa: N802 - the command's name
        count = self.partitions[body.topic]
        return command("partitionMetadataResponse", request_id=body.request_id, partitions=count, response=0)

    def _lookupTopic(self, _pipe, body):  # noqa: N802 - the command's name
        url = f"pulsar://{self.address}"
        return command("lookupTopicResponse", request_id=body.request_id, brokerServiceUrl=url, response=1, authoritative=True)

    def _producer(self, _pipe, body):
        name = body.producer_name or f"auto-{body.producer_id}"
        return command("producer_success", request_id=body.request_id, producer_name=name, last_sequence_id=-1)

    def _send(self, _pipe, body):
        self.entries += 1
        return hot.encode_send_receipt(body[0], body[1], 1, self.entries - 1, highest_sequence_id=body[4] or 0)

    def _subscribe(self, _pipe, body):
        return command("success", request_id=body.request_id)

    _unsubscribe = _seek = _close_producer = _close_consumer = _subscribe
    _txnGroup = _subscribe  # noqa: N815 - the command's name

    def _flow(self, _pipe, body):
        self.permits[body.consumer_id] += body.messagePermits

    def _ack(self, _pipe, body):
        if body[4] is not None:
            return hot.encode_ack_response(body[0], body[4], txn=body[3])
        return None

    def _tcClientConnectRequest(self, _pipe, body):  # noqa: N802 - the command's name
        return command("tcClientConnectResponse", request_id=body.request_id)

    def _newTxn(self, _pipe, body):  # noqa: N802 - the command's name
        self.txns += 1
        return command("newTxnResponse", request_id=body.request_id, txnid_most_bits=body.tc_id, txnid_least_bits=self.txns)

    def _answer_txn(self, name, body):
        bits = {"txnid_most_bits": body.txnid_most_bits, "txnid_least_bits": body.txnid_least_bits}
        return command(name, request_id=body.request_id, **bits)

    def _addPartitionToTxn(self, _pipe, body):  # noqa: N802 - the command's name
        return self._answer_txn("addPartitionToTxnResponse", body)

    def _addSubscriptionToTxn(self, _pipe, body):  # noqa: N802 - the command's name
        return self._answer_txn("addSubscriptionToTxnResponse", body)

    def _prepareTxn(self, _pipe, body):  # noqa: N802 - the command's name
        return self._answer_txn("prepareTxnResponse", body)

    def _endTxn(self, _pipe, body):  # noqa: N802 - the command's name
        return self._answer_txn("endTxnResponse", body)


def fake_client(*brokers: FakeBroker, url: str | None = None, **options: Any) -> AsyncClient:
    """A client whose network is these brokers; short timeouts unless told otherwise."""
    runtime = FakeRuntime({broker.address: broker for broker in brokers})
    given = {"operation_timeout": 5.0, "connection_timeout": 0.5, "initial_backoff": 0.001, "max_backoff": 0.01} | options
    return AsyncClient(url or f"pulsar://{brokers[0].address}", runtime=runtime, **given)


def sent_entry(body: tuple[Any, ...]) -> tuple[pb.MessageMetadata, bytes]:
    """Metadata and payload of a SEND."""
    head, payload = split_entry(body[7])
    return pb.MessageMetadata.FromString(head), bytes(payload)


_TXN = TxnId(3, 7)


class FakeTransaction(AsyncTransaction):
    """What producers and consumers need of a transaction, its own unit; registration ends when the test says so."""

    __eq__, __hash__ = object.__eq__, object.__hash__
    remaining: float | None = None

    def __init__(self, txn_id: TxnId = _TXN, *, registered: bool = True) -> None:
        self.txn_id = txn_id
        self.registration: asyncio.Future[TxnId] = asyncio.get_running_loop().create_future()
        if registered:
            self.registration.set_result(txn_id)
        self.usable = True
        self.started = self.bytes = 0
        self.finished: list[tuple[int, BaseException | None]] = []
        self.end_callbacks: list[Callable[[TxnAction | None], None]] = []
        self.inputs: list[Any] = []

    @property
    def _unit(self) -> Any:  # a property: no circle that keeps it alive
        return self

    def _enlist(self, messages):
        self.started += messages
        return self.txn_id if self.registration.done() else self.registration

    def enlist_send(self, _core, _topic, messages, _size, _flushable):
        return self._enlist(messages)

    def enlist_ack(self, _core, _topic, _subscription, messages, *, cumulative):
        return self._enlist(messages)

    may_be_fenced = False

    def looks_for_input(self, _core):
        pass

    def join(self, _core, joining):
        if joining not in self.inputs:
            self.inputs.append(joining)

    def sent_again(self):
        pass

    def enlist_more(self, _topic, messages, size):
        self.started += messages
        self.bytes += size

    def in_time(self):
        return True

    def called(self, _call):
        """As the unit's."""

    def send_finished(self, _topic, messages, error):
        self.finished.append((messages, error))

    def ack_finished(self, _topic, _subscription, messages, error):
        self.finished.append((messages, error))

    def when_ended(self, callback):
        self.end_callbacks.append(callback)

    def end(self, outcome=TxnAction.COMMIT):
        for callback in self.end_callbacks:
            callback(outcome)


def bare_core() -> Any:
    """The core of no client, for a transaction without one."""
    runtime = SimpleNamespace(monotonic=time.monotonic, secret=bytes)
    return SimpleNamespace(runtime=runtime, settings=SimpleNamespace(operation_timeout=5.0), check_here=lambda: None)


__all__ = [
    "SILENCE",
    "FakeBroker",
    "FakeRuntime",
    "FakeTransaction",
    "Pipe",
    "bare_core",
    "command_end",
    "fake_client",
    "sent_entry",
]
