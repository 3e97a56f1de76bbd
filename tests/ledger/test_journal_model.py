"""The journal against a plain model: random calls, clean restarts and power losses in any order."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_world import Workload, settled, simulated_store
from simulated_files import LOSSES, SimulatedFiles

from pulsar_txn.ledger.journal import check

PLANS = st.lists(st.sampled_from(["calls", "calls", "calls", "flush", "restart", "rest", *LOSSES]), min_size=2, max_size=14)


async def carry_out(rng, plan, segment_bytes):
    files = SimulatedFiles()
    workload = Workload(simulated_store(files, segment_bytes), 0)
    workload.rng = rng
    await workload.store.start()
    for what in plan:
        if what == "calls":
            await workload.run(rng.randint(1, 25))
        elif what == "flush":
            await workload.flush()
        elif what == "rest":
            await settled(workload.store)
        else:
            files = await restart(workload, files, what, rng, segment_bytes)
    await workload.store.close()
    assert await check("/data", files=files) == []


async def restart(workload, files, what, rng, segment_bytes):
    if what == "restart":
        await workload.store.close()
        workload.acknowledged = len(workload.states) - 1
    else:
        files = files.after_power_loss(what, rng)
        workload.store.abandon()
    store = simulated_store(files, segment_bytes)
    await store.start()
    await workload.go_on(store)
    return files


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rng=st.randoms(use_true_random=True), plan=PLANS, segment_kib=st.sampled_from([48, 64, 160]))
def test_any_history_of_calls_restarts_and_losses_agrees_with_the_model(rng, plan, segment_kib):
    asyncio.run(carry_out(rng, plan, segment_kib << 10))
