"""The names of participants: one form inside, and a sentence for whatever cannot take part."""

from __future__ import annotations

import pytest

from pulsar_txn.tc_service.cluster.participants import ParticipantRefused, decode, encode, normalise, validate_cluster_name
from pulsar_txn.wire.ids import Participant


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/t", "persistent://a/b/t"),
        ("persistent://a/b/t-partition-3", "persistent://a/b/t-partition-3"),
        ("persistent://a/b/with|bar", "persistent://a/b/with|bar"),
    ],
)
def test_a_name_becomes_the_full_one_and_comes_back_from_inside(given: str, full: str) -> None:
    for subscription in (None, "s|1"):
        participant = normalise(given, subscription)
        assert participant == Participant(full, subscription)
        inside = encode("east", participant)
        assert inside.topic == f"east|{full}"
        assert decode(inside) == ("east", participant)


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("non-persistent://a/b/t", "not persistent"),
        ("segment://a/b/t/0", "scalable"),
        ("topic://a/b/t", "scalable"),
        ("persistent://pulsar/system/anything", "system topic"),
        ("persistent://a/b/__change_events", "system topic"),
        ("persistent://a/b/__change_events-partition-0", "system topic"),
        ("persistent://a/b/__transaction_buffer_snapshot", "system topic"),
        ("persistent://a/b/__transaction_buffer_snapshot_segments", "system topic"),
        ("persistent://a/b/__transaction_buffer_snapshot_indexes", "system topic"),
        ("persistent://a/b/t-sub__transaction_pending_ack", "system topic"),
        ("kafka://a/b/t", "domain"),
        ("a/b/c/d", "four parts"),
        ("", "empty name"),
        ("a//t", "empty namespace"),
        ("a/b/t\x00", "control character"),
    ],
)
def test_what_no_broker_can_end_is_refused_with_a_sentence(topic: str, words: str) -> None:
    with pytest.raises(ParticipantRefused, match=words):
        normalise(topic)


def test_a_subscription_without_a_name_is_refused() -> None:
    with pytest.raises(ParticipantRefused, match="needs a name"):
        normalise("t", "")


@pytest.mark.parametrize("cluster", ["", "a|b", "a b", "x" * 129, "ä"])
def test_a_cluster_name_that_could_not_be_told_from_a_topic_is_refused(cluster: str) -> None:
    with pytest.raises(ParticipantRefused, match="cluster name"):
        validate_cluster_name(cluster)
    with pytest.raises(ValueError, match="names no cluster"):
        decode(Participant(f"{cluster}|persistent://a/b/t") if "|" not in cluster else Participant("persistent://a/b/t"))
