"""Keys that are due at a time each, against a plain dict, and what they cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.tc.check_times import CheckRules, CheckTimes
from pulsar_txn.tc.extras import Extras
from pulsar_txn.tc.timed import Timed

CHANGES = st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 20)), max_size=60)


@given(CHANGES, st.integers(0, 20), st.integers(0, 12))
def test_what_is_due_is_what_a_dict_says(changes: list[tuple[int, int | None]], now_ms: int, limit: int) -> None:
    timed: Timed[int] = Timed()
    model: dict[int, int] = {}
    for key, due_ms in changes:
        if due_ms is None:
            timed.drop(key)
            model.pop(key, None)
        else:
            timed.put(key, due_ms)
            model[key] = due_ms
        assert timed.first_ms() == min(model.values(), default=None)
        assert len(timed) == len(model)
    due = timed.due(now_ms, limit)
    assert len(due) == len(set(due)) == min(limit, sum(at <= now_ms for at in model.values()))
    times = [model[key] for key in due]
    assert times == sorted(times)
    assert times == sorted(model.values())[: len(times)]
    assert [timed.of(key) for key in range(10)] == [model.get(key) for key in range(10)]
    assert all((key in timed) is (key in model) for key in range(10))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["watch", "forget", "join", "leave", "look", "ask", "return"]), st.integers(0, 5), st.integers(0, 9)
        ),
        max_size=60,
    )
)
def test_what_is_asked_for_is_what_waits_in_groups_that_live_and_have_room(changes: list[tuple[str, int, int]]) -> None:
    times = CheckTimes(CheckRules(after_ms=0, max_checks=3))
    waiting: dict[int, int] = {}
    room: dict[int, int] = {}
    out: set[int] = set()
    for change, least, at in changes:
        group = least % 3
        if change == "watch":
            times.watch(least, None, Extras(group=f"g{group}"), at, is_prepared=False)
            if least not in out:
                waiting[least] = at
        elif change == "forget":
            times.forget(least, None, f"g{group}")
            waiting.pop(least, None)
            out.discard(least)
        elif change == "join":
            times.joined((None, f"g{group}"), at)
            room[group] = at
        elif change == "leave":
            times.left((None, f"g{group}"), at)
            room.pop(group, None)
        elif change == "ask":
            for each, key in times.questions(at, 100):
                times.asked(each, key)
                waiting.pop(each)
                out.add(each)
        elif change == "return":
            assert times.returned(least) is (least in out)
            if least in out:
                out.discard(least)
                times.watch(least, None, Extras(group=f"g{group}"), at, is_prepared=False)
                waiting[least] = at
        left = {each: room.get(each, 0) - sum(one % 3 == each for one in out) for each in range(3)}
        due = {each: when for each, when in waiting.items() if left[each % 3] > 0}
        assert times.deadline() == min(due.values(), default=None)
        found = [each for each, _ in times.questions(at, 100)]
        for each in range(3):
            of_group = sorted(when for one, when in due.items() if one % 3 == each and when <= at)
            assert [waiting[one] for one in found if one % 3 == each] == of_group[: max(0, left[each])]
        assert times.count() == len(waiting) + len(out)
        assert times.is_used == bool(waiting or room or out)


def test_a_group_whose_first_question_moves_away_a_hundred_times_does_not_hold_up_the_others() -> None:
    times = CheckTimes(CheckRules(after_ms=0))
    for least in range(300):
        times.watch(least, None, Extras(group=f"g{least}"), 5, is_prepared=False)
        times.joined((None, f"g{least}"), 1)
        times.watch(least, None, Extras(group=f"g{least}"), 1_000, is_prepared=False)
    looks = 0
    while (deadline := times.deadline()) is not None and deadline < 1_000:
        assert list(times.questions(deadline, 100)) == []
        looks += 1
    assert looks == 1
    assert times.deadline() == 1_000
    assert len(list(times.questions(1_000, 1_000))) == 64, "so many groups at once"
