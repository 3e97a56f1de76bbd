"""End-to-end encryption: what leaves, what is read back, and what happens without the right key."""

import asyncio
from types import SimpleNamespace

import pulsar as official
import pytest
from crypto_samples import ec_pair, rsa_pair
from fake_broker import FakeBroker, fake_client, sent_entry
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_txn.client import AsyncClient, Compression, InitialPosition
from pulsar_txn.client.encoded import encode_batch, row
from pulsar_txn.client.encryption import CryptoFailureAction, PemKeys
from pulsar_txn.client.errors import CryptoError, InvalidConfiguration, OperationTimeout
from pulsar_txn.client.net.runtime import secret_bytes
from pulsar_txn.client.schema.crypto import DATA_KEY_SECONDS, RETRY_SECONDS, Decryptor, Encryptor
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import decode_batch
from pulsar_txn.wire.compression import decompress
from pulsar_txn.wire.frames import FrameReader, decode_command, frame_type

SECRET = b"the price is 42 " * 10


@pytest.fixture(scope="module")
def pair():
    return rsa_pair()


@pytest.fixture(scope="module")
def other_pair():
    return rsa_pair()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def encryptor(keys, *names, clock=None, random_bytes=secret_bytes):
    return Encryptor(names or ("k",), keys, SimpleNamespace(secret=random_bytes, monotonic=clock or Clock()))


def metadata():
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)


# --- producer -------------------------------------------------------------------------------------------------------


async def sent_by(action, **options):
    """The PRODUCER command and the entries of a producer."""
    broker = FakeBroker()
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", **options)
        await action(producer)
    return broker.all("producer")[0], [sent_entry(body) for body in broker.all("send")]


def keys_of(pair):
    return {"encryption_keys": "k", "crypto_keys": PemKeys(public=pair.public)}


async def test_a_payload_leaves_encrypted_behind_its_compression_and_the_broker_is_told(pair):
    command, entries = await sent_by(
        lambda producer: producer.send(SECRET, key="id-1"), **keys_of(pair), compression=Compression.ZLIB
    )
    assert command.encrypted
    ((head, payload),) = entries
    assert b"price" not in payload
    assert [key.key for key in head.encryption_keys] == ["k"]
    assert len(head.encryption_param) == 12
    assert head.partition_key == "id-1"
    opened = Decryptor(PemKeys(private=pair.private)).open(head, payload)
    assert decompress(head.compression, opened, head.uncompressed_size, max_size=1000) == SECRET


async def test_batches_are_encrypted_as_a_whole_those_built_elsewhere_too(pair):
    async def send(producer):
        await asyncio.gather(*(producer.send(SECRET, key=f"id-{number}") for number in range(3)))
        await producer.send_encoded(encode_batch([row(SECRET, key="id-x"), SECRET]))

    _, entries = await sent_by(send, **keys_of(pair))
    counts = []
    for head, payload in entries:
        assert b"price" not in payload
        assert b"id-" not in payload
        rows = decode_batch(Decryptor(PemKeys(private=pair.private)).open(head, payload), head.num_messages_in_batch)
        assert all(each[0] == SECRET for each in rows)
        counts.append(len(rows))
    assert counts == [3, 2]


async def test_without_keys_nothing_changes(pair):
    command, entries = await sent_by(lambda producer: producer.send(SECRET))
    assert not command.encrypted
    assert not entries[0][0].encryption_keys
    assert entries[0][1] == SECRET


@pytest.mark.parametrize(
    "keys",
    [PemKeys(), PemKeys(public=b"no pem"), PemKeys(public="missing.pem"), PemKeys(public=lambda _name, _metadata: {}["x"])],
)
async def test_a_public_key_that_cannot_be_used_is_said_when_the_producer_is_made(keys):
    async with fake_client(FakeBroker()) as client:
        with pytest.raises(CryptoError, match="'k'"):
            await client.create_producer("t", encryption_keys=["k"], crypto_keys=keys)


async def test_a_key_that_is_not_rsa_is_refused():
    with pytest.raises(CryptoError, match="RSA"):
        encryptor(PemKeys(public=ec_pair().public))


@pytest.mark.parametrize("options", [{"encryption_keys": ["k"]}, {"crypto_keys": PemKeys(public=b"x")}])
async def test_names_and_keys_go_together(options):
    async with fake_client(FakeBroker()) as client:
        with pytest.raises(InvalidConfiguration, match="go together"):
            await client.create_producer("t", **options)


def test_no_nonce_is_used_twice_and_every_data_key_is_wrapped_for_every_name(pair, other_pair):
    publics = {"a": pair.public, "b": other_pair.public}
    seal = encryptor(PemKeys(public=lambda name, _metadata: publics[name]), "a", "b").seal
    heads = [metadata() for _ in range(100)]
    payloads = [seal(head, SECRET) for head in heads]
    assert len({head.encryption_param for head in heads}) == 100
    for owner in (pair, other_pair):
        assert Decryptor(PemKeys(private=owner.private)).open(heads[0], payloads[0]) == SECRET


def test_a_data_key_is_replaced_after_four_hours(pair):
    clock = Clock()
    sealing = encryptor(PemKeys(public=pair.public), clock=clock)
    heads = []
    for now in (0, DATA_KEY_SECONDS - 1, DATA_KEY_SECONDS):
        clock.now = now
        heads.append(metadata())
        sealing.seal(heads[-1], b"x")
    first, second, third = (head.encryption_keys[0].value for head in heads)
    assert first == second != third


def test_when_the_next_public_key_cannot_be_had_the_data_key_stays_for_a_while(pair):
    answers = iter([pair.public, OSError("vault is away"), pair.public])

    def public(_name, _metadata):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    clock = Clock()
    sealing = encryptor(PemKeys(public=public), clock=clock)
    values = []
    for now in (0, DATA_KEY_SECONDS, DATA_KEY_SECONDS + 1, DATA_KEY_SECONDS + RETRY_SECONDS):
        clock.now = now
        head = metadata()
        sealing.seal(head, b"x")
        values.append(head.encryption_keys[0].value)
    assert values[0] == values[1] == values[2] != values[3]


@settings(deadline=None)
@given(payload=st.binary(max_size=300), position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_any_payload_comes_back_and_any_change_is_noticed(payload, position, bit):
    head = metadata()
    sealed = SEALING.seal(head, payload)
    assert OPENING.open(head, sealed) == payload
    broken = bytearray(sealed)
    broken[position % len(broken)] ^= 1 << bit
    with pytest.raises(CryptoError):
        OPENING.open(head, bytes(broken))


PAIR = rsa_pair()
SEALING = encryptor(PemKeys(public=PAIR.public))
OPENING = Decryptor(PemKeys(private=PAIR.private))


def test_a_private_key_is_asked_for_once_per_data_key_with_what_travelled_along(pair):
    class Keys:
        def __init__(self):
            self.asked = []

        def public_key(self, name):
            return pair.public, {"version": "3"}

        def private_key(self, name, metadata):
            self.asked.append((name, dict(metadata)))
            return pair.private

    keys = Keys()
    sealing, opening = encryptor(keys), Decryptor(keys)
    for _ in range(3):
        head = metadata()
        assert opening.open(head, sealing.seal(head, SECRET)) == SECRET
    assert keys.asked == [("k", {"version": "3"})]


def test_keys_and_their_sources_are_left_out_of_repr():
    assert "secret" not in repr(PemKeys(public=b"secret", private=b"secret"))


# --- consumer -------------------------------------------------------------------------------------------------------


async def receive(private, deliver, **options):
    """What a consumer hands out within a moment, and what the broker heard."""
    broker = FakeBroker()
    async with fake_client(broker) as client:
        given = options | ({"crypto_keys": PemKeys(private=private)} if private else {})
        consumer = await client.subscribe("t", "s", receiver_queue_size=4, **given)
        deliver(broker)
        broker.deliver(1, 9, b"plain")
        messages = []
        while not messages or messages[-1].data != b"plain":
            messages.append(await consumer.receive(timeout=2))
        await broker.until(lambda: broker.permits[broker.consumer_id] >= 4 + 2)
    return messages[:-1], broker


def deliver_encrypted(pair, *payloads, compression=0):
    def deliver(broker):
        head = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        inner = payloads[0] if len(payloads) == 1 else encode_batch(payloads).payload
        sealed = encryptor(PemKeys(public=pair.public)).seal(head, inner)
        fields = {"encryption_keys": head.encryption_keys, "encryption_param": head.encryption_param}
        if len(payloads) > 1:
            fields["num_messages_in_batch"] = len(payloads)
        broker.deliver(1, 0, sealed, **fields)

    return deliver


async def test_a_consumer_with_the_private_key_gets_messages_and_batches(pair):
    messages, _ = await receive(pair.private, deliver_encrypted(pair, SECRET))
    assert [message.data for message in messages] == [SECRET]
    context = messages[0].encryption_context
    assert list(context.keys) == ["k"]
    assert not context.decryption_failed
    messages, _ = await receive(pair.private, deliver_encrypted(pair, b"a", b"b", b"c"))
    assert [message.data for message in messages] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("private", [None, "other"])
async def test_without_the_key_a_message_stays_and_the_next_ones_come(pair, other_pair, private):
    key = other_pair.private if private else None
    messages, broker = await receive(key, deliver_encrypted(pair, SECRET))
    assert messages == []
    assert not broker.all("ack")


async def test_a_cumulative_acknowledgement_takes_no_message_along_that_could_not_be_decrypted(pair):
    """Named after a loss: it stayed unacknowledged, and the next cumulative acknowledgement took it along."""
    broker = FakeBroker()
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver_encrypted(pair, SECRET)(broker)
        broker.deliver(1, 9, b"plain")
        await consumer.acknowledge_cumulative(await consumer.receive(timeout=2), receipt=True)
    assert [(body[1], body[2]) for body in broker.all("ack")] == [(False, [(1, 9, None, 0)])]


async def test_discard_acknowledges_with_the_reason(pair):
    messages, broker = await receive(None, deliver_encrypted(pair, b"a", b"b"), crypto_failure_action="discard")
    assert messages == []
    frames = FrameReader().feed(b"".join(broker.pipe.writes))
    (ack,) = (decode_command(frame).ack for frame in frames if frame_type(frame) == 10)
    assert (ack.message_id[0].ledgerId, ack.message_id[0].entryId) == (1, 0)
    assert ack.validation_error == pb.CommandAck.DecryptionError


async def test_consume_hands_the_entry_out_as_it_came(pair):
    messages, _ = await receive(None, deliver_encrypted(pair, b"a", b"b"), crypto_failure_action=CryptoFailureAction.CONSUME)
    (message,) = messages
    context = message.encryption_context
    assert context.decryption_failed
    assert context.batch_size == 2
    head = metadata()
    head.encryption_keys.add(key="k", value=context.keys["k"].value)
    head.encryption_param = context.param
    rows = decode_batch(Decryptor(PemKeys(private=pair.private)).open(head, message.data), 2)
    assert [each[0] for each in rows] == [b"a", b"b"]


# --- with the official client ----------------------------------------------------------------------------------------

newest = pytest.mark.parametrize("pulsar", ["ours", pytest.param("stock-4.2.4", marks=pytest.mark.stock)], indirect=True)
WAIT_MS = 20_000


@pytest.fixture
def theirs(pulsar):
    connected = official.Client(pulsar.service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    yield connected
    connected.close()


@newest
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
async def test_the_official_client_reads_what_we_encrypt(pulsar, theirs, topic, pair, tmp_path, compression):
    public, private = pair.write(tmp_path)
    async with AsyncClient(pulsar.service_url) as client:
        producer = await client.create_producer(
            topic, encryption_keys=["k"], crypto_keys=PemKeys(public=public), compression=compression
        )
        await producer.send(b"first")
        async with client.transaction() as txn:
            await asyncio.gather(*(producer.send(b"%d" % number, txn=txn) for number in range(10)))
        reader_keys = official.CryptoKeyReader(str(public), str(private))
        reader = await asyncio.to_thread(
            theirs.create_reader, topic, official.MessageId.earliest, crypto_key_reader=reader_keys
        )
        got = [(await asyncio.to_thread(reader.read_next, WAIT_MS)).data() for _ in range(11)]
        assert got == [b"first", *(b"%d" % number for number in range(10))]
        await asyncio.to_thread(reader.close)


@newest
@pytest.mark.parametrize("batching", [False, True])
async def test_we_read_what_the_official_client_encrypts(pulsar, theirs, topic, pair, tmp_path, batching):
    public, private = pair.write(tmp_path)
    producer = await asyncio.to_thread(
        theirs.create_producer,
        topic,
        encryption_key="k",
        crypto_key_reader=official.CryptoKeyReader(str(public), str(private)),
        batching_enabled=batching,
        compression_type=official.CompressionType.ZLib,
    )
    for number in range(10):
        producer.send_async(b"%d" % number, lambda *_: None)
    await asyncio.to_thread(producer.flush)
    async with AsyncClient(pulsar.service_url) as client:
        options = {"initial_position": InitialPosition.EARLIEST}
        consumer = await client.subscribe(topic, "s", crypto_keys=PemKeys(private=private), **options)
        got = [await consumer.receive(timeout=20) for _ in range(10)]
        assert [message.data for message in got] == [b"%d" % number for number in range(10)]
        stranger = await client.subscribe(topic, "stranger", **options)
        with pytest.raises(OperationTimeout):
            await stranger.receive(timeout=0.5)
    await asyncio.to_thread(producer.close)
