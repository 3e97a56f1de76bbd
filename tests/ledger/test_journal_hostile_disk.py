"""Random calls on a disk that fails, forgets and lies: nothing confirmed is lost, and damage is found and confined."""

import logging

import hostile_disk
import pytest


@pytest.fixture
def quiet():
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("first", range(0, 200, 20))
async def test_on_a_hostile_disk_nothing_confirmed_is_lost_and_damage_is_found_and_confined(first):
    """Seeds that are the same everywhere; `python tests/support/hostile_disk.py FIRST LAST` runs others."""
    outcomes = set()
    for seed in range(first, first + 20):
        try:
            outcomes.update(await hostile_disk.run(seed))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert outcomes == {"whole", "damaged", "refused"}
