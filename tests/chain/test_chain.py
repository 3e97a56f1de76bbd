"""A minute of the black-box chain at each change; `make soak` runs it for longer. Another seed in each run."""

from __future__ import annotations

import os
import random

import pytest
import run_chain
from chain_schedule import CLIENTS

SEED = int(os.environ.get("CHAIN_SEED") or random.SystemRandom().randrange(10**6))


@pytest.mark.slow
@pytest.mark.flaky(reruns=0)  # a message that is lost once is lost: another run proves nothing about this one
@pytest.mark.timeout(400)
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
