"""Names of topics, and the hashes by which keys find partitions and consumers."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.wire import topics
from pulsar_txn.wire.hashing import boost_string_hash, java_string_hash, key_slot, murmur3_32
from pulsar_txn.wire.topics import InvalidName, TopicName, is_transaction_internal, partition_name

PART = st.from_regex(r"[-=:.A-Za-z0-9_]{1,8}", fullmatch=True)
NAME = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12).filter(
    str.strip
)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/t", "persistent://a/b/t"),
        ("persistent://a/b/t", "persistent://a/b/t"),
        ("non-persistent://a/b/t", "non-persistent://a/b/t"),
    ],
)
def test_short_and_full_names_read_to_the_full_name(text: str, full: str):
    assert str(TopicName.parse(text)) == full


@given(st.sampled_from(["persistent", "non-persistent"]), PART, PART, NAME)
def test_a_full_name_reads_back(domain: str, tenant: str, namespace: str, name: str):
    topic = TopicName.parse(f"{domain}://{tenant}/{namespace}/{name}")
    assert topic == TopicName(domain, tenant, namespace, name)
    assert TopicName.parse(str(topic)) == topic
    assert topic.is_persistent == (domain == "persistent")


@pytest.mark.parametrize("character", ["\0", "\n", "\r", "\t", "\x1b", "\x7f", "\x85"])
def test_a_name_with_a_control_character_is_refused(character: str):
    for name in (character, f"a{character}b", f"b{character}"):
        with pytest.raises(InvalidName):
            TopicName.parse(f"persistent://public/default/a{name}")
        with pytest.raises(InvalidName, match="control character"):
            topics.check_subscription(f"a{name}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a/t",
        "a/b/c/t",
        "persistent://t",
        "persistent://a/b/",
        "persistent://a//t",
        "http://a/b/t",
        "a b/c/t",
        "persistent://a/ü/t",
        "/a/b",
        "persistent://",
    ],
)
def test_other_names_are_refused_with_a_sentence(text: str):
    with pytest.raises(InvalidName, match=r"topic '.*' (is not|has|: )|may have letters"):
        TopicName.parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_name_or_an_invalid_name(text: str):
    try:
        topic = TopicName.parse(text)
    except InvalidName:
        return
    assert topic.name == topic.base.name or topic.partition >= 0


@pytest.mark.parametrize(
    ("name", "partition", "base"),
    [
        ("t", -1, "t"),
        ("t-partition-0", 0, "t"),
        ("t-partition-12", 12, "t"),
        ("t-partition-012", -1, "t-partition-012"),
        ("t-partition-x", -1, "t-partition-x"),
        ("-partition-1", -1, "-partition-1"),
        ("a-partition-1-partition-2", 2, "a-partition-1"),
    ],
)
def test_partitions_are_told_by_their_suffix(name: str, partition: int, base: str):
    topic = TopicName.parse(name)
    assert (topic.partition, topic.base.name) == (partition, base)


LONGEST = "x" * (topics.MAX_TOPIC_BYTES - len("persistent://public/default/"))


@pytest.mark.parametrize("text", [LONGEST, f"{LONGEST}-partition-0", f"public/default/{LONGEST}-partition-9999999999"])
def test_the_longest_topic_is_a_name_and_so_are_its_partitions(text: str):
    topic = TopicName.parse(text)
    assert len(str(topic.base)) == topics.MAX_TOPIC_BYTES
    assert TopicName.parse(str(topic)) == topic


@pytest.mark.parametrize(
    "text",
    [
        "x" * 70_000,
        LONGEST + "x",
        f"{LONGEST}x-partition-0",
        f"{LONGEST}-partition-01",
        "t-partition-" + "9" * 5000,
        "ü" * (topics.MAX_TOPIC_BYTES // 2),
        "public/" + "x" * 70_000 + "/t",
        "x" * 70_000 + "/default/t",
        "public/" + "x" * 1020 + "/t",
    ],
)
def test_a_longer_name_is_refused_with_a_short_sentence_that_says_what_to_do(text: str):
    with pytest.raises(InvalidName, match=r"at most (2048|1024) are allowed; choose a shorter name") as refused:
        TopicName.parse(text)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("text", ["\udc80", "persistent://public/default/a\ud800"])
def test_a_name_that_utf8_cannot_write_is_refused(text: str):
    with pytest.raises(InvalidName, match="UTF-8"):
        TopicName.parse(text)


def test_subscriptions_and_namespaces_have_bounds_too():
    topics.check_subscription("ü" * (topics.MAX_SUBSCRIPTION_BYTES // 2))
    for name, said in {
        "s" * 2049: "shorter",
        "ü" * 1025: "shorter",
        "": "needs a name",
        " ": "needs",
        "\ud800": "UTF-8",
    }.items():
        with pytest.raises(InvalidName, match=said):
            topics.check_subscription(name)
    topics.check_namespace("t" * 100, "n" * 923)
    for tenant, namespace in (("t" * 100, "n" * 924), ("t/x", "n"), ("t", ""), ("", "n")):
        with pytest.raises(InvalidName, match="namespace"):
            topics.check_namespace(tenant, namespace)


def test_the_longest_names_together_fit_into_every_record():
    """A log's name may have 65,535 bytes: of the pending acks of a subscription, twice percent-encoded as well."""
    name = "ü" * (len(LONGEST) // 2)
    inner = topics.pending_ack_topic(f"{name}-partition-9999999999", "ü" * (topics.MAX_SUBSCRIPTION_BYTES // 2))
    assert len("/managed-ledgers/public/default/persistent/" + quote(inner, safe="")) < 65_535 // 2


def test_partitions_are_named_from_topic_and_from_partition():
    topic = TopicName.parse("t")
    assert str(topic.with_partition(3)) == "persistent://public/default/t-partition-3" == partition_name(str(topic), 3)
    assert topic.with_partition(3).with_partition(4) == topic.with_partition(4)
    with pytest.raises(ValueError, match="count from 0"):
        topic.with_partition(-1)


@pytest.mark.parametrize(
    ("name", "internal"),
    [
        (topics.ASSIGN_TOPIC, True),
        (partition_name(topics.ASSIGN_TOPIC, 3), True),
        ("persistent://pulsar/system/__transaction_log_5", True),
        (topics.pending_ack_topic("persistent://public/default/t", "sub"), True),
        ("persistent://public/default/__transaction_buffer_snapshot", False),
        ("persistent://public/default/t", False),
    ],
)
def test_topics_of_the_transaction_machinery_are_known(name: str, internal: bool):
    assert is_transaction_internal(name) is internal


def test_a_pending_ack_topic_encodes_its_subscription_as_java_does():
    assert topics.pending_ack_topic("t", "a b/ü*~-._") == "t-a+b%2F%C3%BC*%7E-._" + topics.PENDING_ACK_SUFFIX


# Murmur3_x86_32 with seed 0, published values with the sign bit cleared.
MURMUR = [
    (b"", 0),
    (b"key1", 462881061),
    (b"key2", 1936800180),
    (b"Hello world", 764499724),
    (b"hello", 0x248BFA47),
    (b"hello, world", 0x149BBB7F),
    (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    (b"test", 0xBA6BD213 & 0x7FFFFFFF),
    (b"Hello, world!", 0xC0363E43 & 0x7FFFFFFF),
    (b"\xff\xff\xff\xff", 0x76293B50),
    (b"\x21\x43\x65\x87", 0xF55B516B & 0x7FFFFFFF),
    (b"\x21\x43\x65", 0x7E4A8634),
    (b"\x21\x43", 0xA0F7B07A & 0x7FFFFFFF),
    (b"\x21", 0x72661CF4),
    (b"\x00\x00\x00\x00", 0x2362F9DE),
]


@pytest.mark.parametrize(("data", "expected"), MURMUR)
def test_murmur3_gives_the_published_values(data: bytes, expected: int):
    assert murmur3_32(data) == expected
    assert key_slot(data) == expected % 65536


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", 0),
        ("hello world", 1794106052),
        ("key1", 3288498),
        ("key2", 3288499),
        ("ü", 252),
        ("😀", 1772899),
    ],
)
def test_java_string_hash_is_that_of_java(text: str, expected: int):
    assert java_string_hash(text) == expected


# Where the official Python client 3.13 put these keys on topics of 7 and of 8 partitions.
SEEN = [
    ("a", 4, 4),
    ("ab", 1, 6),
    ("abc", 4, 5),
    ("abcd", 5, 2),
    ("abcde", 0, 5),
    ("abcdef", 2, 0),
    ("abcdefg", 3, 6),
    ("abcdefgh", 5, 6),
    ("abcdefghi", 6, 6),
    ("order-20251121-7", 6, 5),
    ("flight UA 1545 of 2013-01-01", 6, 1),
    ("grüß", 2, 0),
    ("日本語", 1, 1),
]


@pytest.mark.parametrize(("key", "of_7", "of_8"), SEEN)
def test_boost_string_hash_puts_keys_where_the_official_client_puts_them(key: str, of_7: int, of_8: int):
    number = boost_string_hash(key.encode())
    assert (number % 7, number % 8) == (of_7, of_8)


@given(st.text(max_size=30))
def test_hashes_are_never_negative(text: str):
    assert 0 <= java_string_hash(text) < 2**31
    assert 0 <= boost_string_hash(text.encode("utf-8", "surrogatepass")) < 2**31
    assert 0 <= murmur3_32(text.encode("utf-8", "surrogatepass")) < 2**31
