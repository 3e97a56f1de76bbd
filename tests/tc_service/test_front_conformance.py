"""The stories of `tests/conformance` with the front as their service URL: the same, except where a sentence says why not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from our_coordinator import OurCoordinator
from stock_pulsar import free_port
from targets import Target

STORIES: Final = Path(__file__).parents[1] / "conformance"
SAMPLE: Final = "test_visibility.py"
COORDINATORS: Final = "3"
"""As many as the stories have at a stock server."""

ELSEWHERE: Final = "the admin API of the brokers knows their own coordinators alone"
REMEMBERED: Final = "our coordinators know what has ended, and answer a repeated end; those of the brokers have forgotten it"
CHECKED: Final = "a topic that does not exist is refused when it is registered; brokers answer ok to its end, and do nothing"
DIFFERENT: Final = {
    "test_a_commit_of_what_was_aborted_elsewhere_does_not_succeed": REMEMBERED,
    "test_an_end_of_what_was_committed_elsewhere": REMEMBERED,
    "test_what_can_be_found_out_of_a_transaction_that_ended": REMEMBERED,
    "test_what_was_committed_is_asked_to_end_once_more": REMEMBERED,
    "test_a_participant_that_is_missing_counts_as_told": CHECKED,
    "test_a_transaction_with_a_topic_that_is_gone_is_shown": CHECKED,
    "test_behind_its_end_a_transaction_takes_nothing_more": CHECKED,
    "test_an_end_of_a_group_of_transactions": "our coordinators end groups",
    "test_an_error_of_the_coordinator_comes_out_as_itself": "its number that nobody ever had is the first one here",
    "test_a_coordinator_counts_what_is_open": ELSEWHERE,
    "test_a_coordinator_counts_what_it_began_and_how_it_ended": ELSEWHERE,
    "test_a_coordinator_shows_its_log": ELSEWHERE,
    "test_a_transaction_begins_open_and_empty": ELSEWHERE,
    "test_a_transaction_has_a_minute_unless_it_is_told_otherwise": ELSEWHERE,
    "test_a_transaction_is_aborted_by_the_administration": ELSEWHERE,
    "test_a_transaction_is_shown_with_its_topics_and_subscriptions": ELSEWHERE,
    "test_coordinators_are_listed_with_where_they_are": ELSEWHERE,
    "test_many_transactions_are_aborted_each_at_its_time": ELSEWHERE,
    "test_times_and_batches_are_measured": ELSEWHERE,
    "test_topics_and_subscriptions_are_added_to_a_transaction_once_each": ELSEWHERE,
    "test_transactions_that_are_open_for_long_are_found": ELSEWHERE,
}
"""Stories that end otherwise through the front, and why."""


@pytest.mark.stock
@pytest.mark.parametrize(
    ("what", "seconds"),
    [
        pytest.param(SAMPLE, 200, marks=pytest.mark.timeout(220)),
        pytest.param("", 2_400, marks=[pytest.mark.soak, pytest.mark.timeout(2_500)]),
    ],
)
def test_our_clients_stories_end_through_the_front_as_they_do_without(
    stock_pulsar: Target, tmp_path: Path, what: str, seconds: int
) -> None:
    port = free_port()
    conf = {"frontServicePort": str(port), "numberOfTransactionCoordinators": COORDINATORS}
    with OurCoordinator({"east": stock_pulsar.service_url}, conf=conf):
        environment = {"PULSAR_URL": f"pulsar://127.0.0.1:{port}", "PULSAR_ADMIN_URL": stock_pulsar.admin_url}
        command = [sys.executable, "-m", "pytest", "-q", "-rf", "-k", "outside", "-p", "no:cacheprovider", str(STORIES / what)]
        done = subprocess.run(
            [*command, "-n", "2" if not what else "0", f"--basetemp={tmp_path / 'stories'}"],
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    failed = set(re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE))
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout[-3000:] + done.stderr[-3000:]
    assert int(passed[1]) >= 20
    assert failed <= DIFFERENT.keys(), done.stdout[-8000:]
