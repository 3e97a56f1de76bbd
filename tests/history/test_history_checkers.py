"""The checks accept what a correct system does, and find each fault of their kind in the middle of it."""

from __future__ import annotations

import os
import random

import pytest
from check_history import CHECKS, OF_PRESENCE, judge
from history_changes import copied
from history_facts import Facts
from history_faults import FAULTS
from history_model import Model
from history_reader import History
from history_verdict import INVALID, UNKNOWN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32)
CASES = [(check, fault) for check, faults in FAULTS.items() for fault in faults]
EXAMPLES = 40 if "PULSAR_TXN_SOAK" in os.environ else 16
RUNS = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def judged(check, ops):
    return judge(History(ops), [check])[0]


@pytest.mark.deeper
@RUNS
@given(SEEDS, st.integers(2, 6))
def test_what_a_correct_system_does_is_never_invalid(seed, workers):
    facts = Facts(Model(seed, steps=600, workers=workers).run())
    for check in CHECKS.values():
        verdict = check(facts)
        assert verdict.status != INVALID, str(verdict)


@pytest.mark.deeper
def test_what_a_correct_system_does_is_valid_when_enough_happened():
    for seed in range(EXAMPLES // 2):
        facts = Facts(Model(seed, steps=3000, workers=4).run())
        for check in CHECKS.values():
            verdict = check(facts)
            assert verdict.status not in (INVALID, UNKNOWN), str(verdict)


@pytest.mark.deeper
@pytest.mark.parametrize(("check", "fault"), CASES, ids=[f"{check}-{fault.__name__}" for check, fault in CASES])
def test_a_fault_in_the_middle_is_found_and_its_witness_shows_it_alone(check, fault):
    hits = 0

    @RUNS
    @given(SEEDS)
    def run(seed):
        nonlocal hits
        history = Model(seed, steps=500).run()
        ops = fault(copied(history.ops), random.Random(seed))
        if ops is None:
            return
        hits += 1
        verdict = judged(check, ops)
        assert verdict.status == INVALID, (fault.__name__, str(verdict))
        meta = [op for op in ops if op.f == "meta"]
        witness = [op for op in verdict.witness if op.f != "meta"]
        assert 1 <= len(witness) < len(ops)
        alone = judged(check, copied([*meta, *witness]))
        assert alone.status == INVALID, str(alone)
        if check in OF_PRESENCE:
            for op in witness:
                less = judged(check, copied([*meta, *(other for other in witness if other is not op)]))
                assert less.status != INVALID, f"{op!r} is not needed in {verdict}"

    run()
    assert hits >= EXAMPLES // 3, "the model makes too few histories with a place for this fault"
