"""Whom the service answers over HTTP when clients have to say who they are: operators everything, others what is their own."""

from __future__ import annotations

from typing import Any

import pytest
from coordinator_bench import Bench
from credentials import TOKENS, Speaker, token
from raw_client import FULL
from service_admin import ServiceAdmin, admin_of

BASE = "/admin/v3/transactions"


async def ask(admin: ServiceAdmin, role: str | None, path: str, method: str = "GET") -> tuple[int, Any]:
    return await admin(method, path, {} if role is None else {"Authorization": f"Bearer {token(role)}"})


@pytest.fixture
async def bench() -> Any:
    made = await Bench("east", **TOKENS, super_user_roles="root").start()
    yield made
    await made.service.close()
    await made.store.close()


async def test_probes_need_no_credentials_and_everything_else_does(bench: Bench) -> None:
    async with admin_of(bench.service) as admin:
        for path in ("/health", "/ready", "/metrics"):
            assert (await ask(admin, None, path))[0] == 200
        for path in ("/coordinators", "/slowTransactions/0", "/ends", "/clients", f"/timeline/{1 << 62}/1"):
            assert (await ask(admin, None, BASE + path))[0] == 401
        status, body = await admin("GET", f"{BASE}/ends", {"Authorization": "Bearer x.y.z"})
        assert (status, "token" in body["reason"]) == (401, True)


async def test_a_role_sees_and_ends_what_is_its_own_and_an_operator_everything(bench: Bench) -> None:
    async with admin_of(bench.service) as admin:
        client = Speaker(bench.service, token("ann"))
        txn = await client.new_txn()
        await client.add_topics(txn, FULL + "out")
        name = f"({txn.most},{txn.least})"
        one, story = f"{BASE}/transactionMetadata/{txn.most}/{txn.least}", f"{BASE}/timeline/{txn.most}/{txn.least}"
        abort = f"{BASE}/abortTransaction/{txn.most}/{txn.least}"
        for role, found in (("ann", [name]), ("bob", []), ("root", [name])):
            assert list((await ask(admin, role, f"{BASE}/slowTransactions/0"))[1]) == found
            assert len((await ask(admin, role, f"{BASE}/clients"))[1]) <= len(found)
        for path in (one, story):
            assert [(await ask(admin, role, path))[0] for role in ("ann", "bob", "root")] == [200, 404, 200]
        status, alien = await ask(admin, "bob", abort, "POST")
        _, never = await ask(admin, "bob", f"{BASE}/abortTransaction/{txn.most}/{txn.least + 7}", "POST")
        assert status == 404
        assert alien["reason"].replace(str(txn.least) + ")", "") == never["reason"].replace(str(txn.least + 7) + ")", "")
        assert bench.clusters["east"].told == []
        assert [(await ask(admin, role, f"{BASE}/ends"))[0] for role in ("ann", "root")] == [403, 200]
        assert (await ask(admin, "ann", abort, "POST"))[0] == 204
        assert len(bench.clusters["east"].told) == 1
