"""The databases that an outbox is tested with: SQLite in a file, and a real PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import postgres as postgres_server
import pytest
import targets
from outbox_databases import BLOCKING, Database


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The DSN of a PostgreSQL of this process's own; skipped, or failed with PULSAR_TXN_REQUIRE=postgres, without one."""
    if reason := postgres_server.missing_tools():
        targets.lacking("postgres", reason)
    with postgres_server.Postgres() as server:
        yield server.dsn


def _database(server: str, name: str) -> str:
    """The DSN of a new database beside the one that a DSN names."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.rpartition("/")[0] + "/" + name


@pytest.fixture(scope="session")
def other_postgres(postgres: str) -> str:
    """The DSN of another database of the same server."""
    return _database(postgres, "other_orders")


@pytest.fixture
def empty_postgres(postgres: str) -> str:
    """The DSN of a database that no other test uses, nor another run of the same test."""
    return _database(postgres, f"orders_{uuid.uuid4().hex[:12]}")


@pytest.fixture
def table() -> str:
    """The name of a table that no other test uses."""
    return f"outbox_{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=[pytest.param(make, id=name) for name, make in BLOCKING.items()])
def database(request: pytest.FixtureRequest, tmp_path: object, table: str) -> Iterator[Database]:
    """Each kind of blocking connection in turn, with the outbox's table and one of orders."""
    needs_server = "sqlite" not in request.node.callspec.id
    made = request.param(request.getfixturevalue("postgres") if needs_server else f"{tmp_path}/orders.db", table)
    made.create()
    yield made
    made.close()
