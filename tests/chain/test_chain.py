"""A minute of the black-box chain at each change; `make soak` runs it for longer. Another seed in each run."""

from __future__ import annotations

import os
import random

import pytest
import run_chain
from chain_schedule import CLIENTS
from stock_install import VERSIONS

SEED = int(os.environ.get("CHAIN_SEED") or random.SystemRandom().randrange(10**6))


@pytest.mark.slow
@pytest.mark.flaky(reruns=0)  # a message that is lost once is lost: another run proves nothing about this one
@pytest.mark.timeout(400)
@pytest.mark.soak  # ours are in the next one as well
@pytest.mark.parametrize("phase", ["calm", "kills"])
def test_what_goes_into_three_hops_of_transactions_comes_out_once(phase, tmp_path, capfd):
    failed = run_chain.main(["--seed", str(SEED), "--seconds", "10", "--phases", phase, "--folder", str(tmp_path)])
    assert not failed, capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.flaky(reruns=0)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("phase", [pytest.param("calm", marks=pytest.mark.soak), "kills"])
def test_official_clients_of_java_and_go_work_beside_ours_and_each_message_comes_out_once(phase, tmp_path, capfd):
    options = ["--seconds", "10", "--phases", phase, "--clients", *CLIENTS]
    failed = run_chain.main(["--seed", str(SEED), *options, "--folder", str(tmp_path)])
    assert not failed, capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.stock
@pytest.mark.flaky(reruns=0)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", VERSIONS)
def test_beside_stock_too_java_and_ours_bring_each_unbatched_message_through_once(version, tmp_path, capfd):
    """Batched ones would meet a defect of stock; see `run_chain`."""
    options = ["--seconds", "20", "--phases", "calm", "--stock", version, "--unbatched", "--clients", "ours", "java"]
    failed = run_chain.main(["--seed", str(SEED), *options, "--folder", str(tmp_path)])
    assert not failed, capfd.readouterr().out
