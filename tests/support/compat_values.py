"""Programs of the official client's users: ids, schemas, enumerations and exceptions; see `compat_kit`."""

from __future__ import annotations

import enum
import tempfile
from pathlib import Path

from compat_kit import WAIT, open_client, program, raised
from crypto_samples import rsa_pair


@program
def message_ids(pulsar, _url, _topic):
    first, second = pulsar.MessageId(1, 2, 3, 4), pulsar.MessageId(-1, 2, 4, -1)
    same = pulsar.MessageId(1, 2, 3, 4)
    ends = [pulsar.MessageId.earliest, pulsar.MessageId.latest]
    back = pulsar.MessageId.deserialize(first.serialize(), "persistent://public/default/t")
    return (
        [(each.ledger_id(), each.entry_id(), each.partition(), each.batch_index()) for each in (first, second, back)],
        [each.serialize() for each in (first, second, *ends)],
        [str(each) for each in (first, second, *ends)],
        [first == same, first != second, first < second, second >= first, first <= same, first > second],
    )


@program
def text_json_and_avro(pulsar, url, topic):
    schema = pulsar.schema

    class Colour(enum.Enum):
        red = 1
        green = 2

    class Part(schema.Record):
        name = schema.String(required=True)
        count = schema.Integer(default=1)

    class Order(schema.Record):
        id = schema.Long(required=True)
        price = schema.Double()
        paid = schema.Boolean(default=False)
        colour = Colour
        tags = schema.Array(schema.String())
        amounts = schema.Map(schema.Integer())
        part = Part()
        parts = schema.Array(Part())

    facts = [Order.schema(), Part.schema()]
    order = Order(
        id=7, price=1.5, colour=Colour.green, tags=["a", "b"], amounts={"x": 1}, part=Part(name="p"), parts=[Part(name="q")]
    )
    facts += [raised(pulsar, setattr, order, "id", "x"), raised(pulsar, setattr, order, "other", 1)]
    with open_client(pulsar, url) as client:
        text = schema.StringSchema()
        consumer = client.subscribe(f"{topic}-text", "s", schema=text)
        producer = client.create_producer(f"{topic}-text", schema=text)
        producer.send("grüß")
        facts += [consumer.receive(WAIT).value(), raised(pulsar, producer.send, b"x")]
        for name, kind in (("json", schema.JsonSchema(Order)), ("avro", schema.AvroSchema(Order))):
            consumer = client.subscribe(f"{topic}-{name}", "s", schema=kind)
            producer = client.create_producer(f"{topic}-{name}", schema=kind)
            producer.send(order)
            value = consumer.receive(WAIT).value()
            facts += [value.id, value.price, value.paid, value.tags, value.amounts, value.part.name, value.part.count]
            facts += [value.parts[0].name, raised(pulsar, producer.send, 7)]
    return facts


@program
def enumerations(pulsar, _url, _topic):
    names = "BatchingType CompressionType ConsumerType ConsumerCryptoFailureAction InitialPosition KeySharedMode LoggerLevel"
    names += " PartitionsRoutingMode ProducerAccessMode RegexSubscriptionMode Result"
    facts = []
    for name in names.split():
        members = getattr(pulsar, name).__members__
        facts.append((name, sorted((int(member), key, str(member)) for key, member in members.items())))
    return facts


@program
def exceptions(pulsar, url, topic):
    names = [name for name in pulsar.Result.__members__ if name != "Ok"]
    facts = [(name, issubclass(getattr(pulsar.exceptions, name), pulsar.exceptions.PulsarException)) for name in names]
    facts += [getattr(pulsar, name) is getattr(pulsar.exceptions, name) for name in names]
    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s")
        facts.append(raised(pulsar, client.subscribe, topic, "s"))
        facts.append(raised(pulsar, client.subscribe, "no such domain://a/b/c", "s"))
        try:
            consumer.receive(20)
        except pulsar.Timeout:
            facts.append("caught by its name")
    facts.append(raised(pulsar, client.create_producer, topic))
    facts += [raised(pulsar, pulsar.Client, url) for url in ("", "no url", "pulsar://", "pulsar://host:x", "other://host:6650")]
    return facts


@program
def a_schema_of_ones_own(pulsar, url, topic):
    class Reversed(pulsar.schema.BytesSchema):
        def encode(self, obj):
            return obj[::-1].encode()

        def decode(self, data):
            return data.decode()[::-1]

    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s", schema=Reversed())
        producer = client.create_producer(topic, schema=Reversed())
        producer.send("stressed")
        message = consumer.receive(WAIT)
        return message.data(), message.value(), isinstance(Reversed(), pulsar.schema.Schema), raised(pulsar, producer.send, 7)


@program
def policies(pulsar, _url, _topic):
    batch, keys, letters = pulsar.ConsumerBatchReceivePolicy, pulsar.ConsumerKeySharedPolicy, pulsar.ConsumerDeadLetterPolicy
    shared = keys(pulsar.KeySharedMode.Sticky, True, [(0, 10), (11, 65535)])
    letter = letters(3, "dead", "sub")
    return (
        raised(pulsar, batch, -1, -1, -1),
        raised(pulsar, batch, 10, -1, -1),
        (shared.key_shared_mode == pulsar.KeySharedMode.Sticky, shared.allow_out_of_order_delivery, shared.sticky_ranges),
        [raised(pulsar, keys, pulsar.KeySharedMode.Sticky, False, ranges) for ranges in (None, [(-1, 5)], [(0, 65536)])],
        (letter.max_redeliver_count, letter.dead_letter_topic, letter.initial_subscription_name),
        [raised(pulsar, letters, count) for count in (None, 0)],
    )


@program
def encryption_end_to_end(pulsar, url, topic):
    with tempfile.TemporaryDirectory() as folder:
        public, private = rsa_pair().write(Path(folder))
        reader = pulsar.CryptoKeyReader(str(public), str(private))
        with open_client(pulsar, url) as client:
            consumer = client.subscribe(topic, "s", crypto_key_reader=reader)
            blind = client.subscribe(topic, "blind", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME)
            producer = client.create_producer(
                topic, encryption_key="team", crypto_key_reader=reader, compression_type=pulsar.CompressionType.LZ4
            )
            producer.send(b"secret" * 50, partition_key="k")
            facts = []
            for message in (consumer.receive(WAIT), blind.receive(WAIT)):
                context = message.encryption_context()
                facts.append((message.data() == b"secret" * 50, len(context.param()), context.algorithm()))
                facts.append((int(context.compression_type()), context.uncompressed_message_size(), context.batch_size()))
                keys = context.keys()
                facts.append((context.is_decryption_failed(), [(key.key, len(key.value), key.metadata) for key in keys]))
    return facts
