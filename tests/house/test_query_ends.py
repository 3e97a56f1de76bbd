"""Queries of the tests start again after Spark's own limit for a Python worker, and after nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from spark_local import ended

GIVEN_UP = "[STREAM_FAILED] terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
OF_CONNECT = "java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back"


class Query:
    """Ends with these errors, one after the other; None is an end without one."""

    def __init__(self, *ends: str | None) -> None:
        self._ends: Iterator[str | None] = iter(ends)
        self.starts = 0

    def start(self) -> Query:
        self.starts += 1
        return self

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        end = next(self._ends)
        if end is not None:
            raise RuntimeError(end)


@pytest.mark.parametrize("ends", [(None,), (GIVEN_UP, None), (OF_CONNECT, None), (GIVEN_UP, OF_CONNECT, None)])
def test_a_query_is_started_until_its_worker_has_begun(ends: tuple[str | None, ...]) -> None:
    query = Query(*ends)
    ended(query.start)
    assert query.starts == len(ends)


@pytest.mark.parametrize("ends", [("ours",), (GIVEN_UP, "ours"), (GIVEN_UP, GIVEN_UP, GIVEN_UP)])
def test_every_other_error_and_the_third_one_are_raised(ends: tuple[str, ...]) -> None:
    query = Query(*ends)
    with pytest.raises(RuntimeError) as caught:
        ended(query.start)
    assert (str(caught.value), query.starts) == (ends[-1], len(ends))
