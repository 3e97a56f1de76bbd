"""The state of a function in memory: what a call sees, what a transaction keeps, and that the topic stays short."""

from __future__ import annotations

import random

from pulsar_txn.pipeline.functions.state import table as module
from pulsar_txn.pipeline.functions.state.table import SLACK, Table


class Topic:
    """What a state's topic holds: committed records, of which a prefix may be removed."""

    def __init__(self):
        self.records = []
        self.removed = 0

    def append(self, records):
        self.records += records

    def remove_until(self, position):
        assert position >= self.removed
        self.removed = position + 1

    def read(self):
        table = Table()
        for position in range(self.removed, len(self.records)):
            key, value = self.records[position]
            table.load(key, value, position)
        return table


def commit(table, topic, extra=0):
    topic.append(table.to_write() + [(None, None)] * extra)
    table.mark(table.keep(extra), len(topic.records) - 1)
    if (position := table.garbage(1)) is not None:
        topic.remove_until(position)


def test_a_change_is_seen_at_once_and_is_gone_when_it_is_dropped():
    table = Table()
    table.set("a", 1)
    table.keep()
    table.set("a", 2)
    table.set("b", b"x")
    assert (table.get("a"), table.get("b")) == (2, b"x")
    table.drop()
    assert (table.get("a"), table.get("b")) == (1, None)


def test_a_deleted_key_is_written_as_a_tombstone_and_is_gone():
    table, topic = Table(), Topic()
    table.set("a", 1)
    commit(table, topic)
    table.set("a", None)
    assert table.to_write() == [("a", None)]
    commit(table, topic)
    assert table.get("a") is None
    assert topic.read().get("a") is None


def test_a_key_that_is_changed_often_in_one_transaction_is_written_once():
    table = Table()
    for number in range(1000):
        table.set("the", number)
    assert table.to_write() == [("the", 999)]


def test_after_any_commits_aborts_and_removals_the_topic_gives_the_committed_state_again(monkeypatch):
    monkeypatch.setattr(module, "SLACK", 5)
    for seed in range(30):
        chance = random.Random(seed)
        table, topic, model = Table(), Topic(), {}
        for _ in range(200):
            changes = {
                f"k{chance.randrange(20)}": chance.choice([None, chance.randrange(9), b"v"])
                for _ in range(chance.randrange(1, 4))
            }
            for key, value in changes.items():
                table.set(key, value)
            if chance.random() < 0.3:
                table.to_write()
                table.drop()
                continue
            commit(table, topic, extra=chance.randrange(3))
            model |= changes
            assert dict(topic.read().committed()) == dict(table.committed())
            if chance.random() < 0.02:
                table = topic.read()
            assert {key: value for key, value in model.items() if value is not None} == dict(table.committed())
        assert dict(topic.read().committed()) == dict(table.committed())


def test_the_topic_stays_within_three_times_the_keys_also_when_most_keys_never_change():
    table, topic = Table(), Topic()
    for number in range(5000):
        table.set(f"cold{number}", number)
        if number % 100 == 99:
            commit(table, topic)
    longest = 0
    for number in range(40_000):
        table.set("hot", number)
        commit(table, topic)
        longest = max(longest, len(topic.records) - topic.removed)
    assert longest < 3 * 5001 + SLACK + 100
    assert len(dict(topic.read().committed())) == 5001


def test_two_hundred_thousand_keys_are_written_and_read_without_a_search_through_them():
    """Each write looks at a bounded number of keys: to look at all would take an hour here."""
    table = Table()
    for number in range(200_000):
        table.load(f"k{number}", number, number)
    for number in range(50_000):
        table.set(f"k{number}", -1)
        table.mark(table.keep(), 200_000 + number)
        table.garbage(1000)
    assert len(table) == 200_000
    assert table.get("k49999") == -1
