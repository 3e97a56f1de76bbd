"""Tenants and namespaces: names only. Every name may be used without being made; what is made is remembered and listed."""

from __future__ import annotations

import json
from typing import Any, Final

from aiohttp import web

from pulsar_txn.wire.errors import Refusal, ServerError

from .admin import BROKER, Routes, done
from .broker import Broker

_ALWAYS: Final = {"public": {"default"}, "pulsar": {"system"}}
_POLICIES: Final = "/admin/policies"


async def _namespaces(broker: Broker) -> dict[str, set[str]]:
    """Tenant -> its namespaces: those that always are, those that were made, and those that have topics."""
    found = {tenant: set(names) for tenant, names in _ALWAYS.items()}
    metadata = broker.store.metadata
    for tenant in await metadata.children(_POLICIES):
        found.setdefault(tenant, set()).update(await metadata.children(f"{_POLICIES}/{tenant}"))
    for log in broker.store.names():
        tenant, _, rest = log.partition("/")
        namespace, slash, _ = rest.partition("/")
        if slash:
            found.setdefault(tenant, set()).add(namespace)
    return found


async def _known(request: web.Request) -> tuple[str, str]:
    """The namespace that the path names. Refusal TopicNotFound."""
    tenant, namespace = request.match_info["tenant"], request.match_info["namespace"]
    if namespace not in (await _namespaces(request.app[BROKER])).get(tenant, ()):
        raise Refusal(ServerError.TopicNotFound, f"Namespace {tenant}/{namespace} does not exist")
    return tenant, namespace


async def list_tenants(request: web.Request) -> web.Response:
    """GET: names."""
    return web.json_response(sorted(await _namespaces(request.app[BROKER])))


async def show_tenant(request: web.Request) -> web.Response:
    """GET: who may administrate it (everybody), and where it is."""
    broker, tenant = request.app[BROKER], request.match_info["tenant"]
    if tenant not in await _namespaces(broker):
        raise Refusal(ServerError.TopicNotFound, f"Tenant {tenant} does not exist")
    return web.json_response({"adminRoles": [], "allowedClusters": [broker.config.cluster_name]})


async def make_tenant(request: web.Request) -> web.Response:
    """PUT, POST: remember the name."""
    await _remember(request, f"{_POLICIES}/{request.match_info['tenant']}", {})
    return done()


async def list_namespaces(request: web.Request) -> web.Response:
    """GET: full names."""
    tenant = request.match_info["tenant"]
    found = await _namespaces(request.app[BROKER])
    if tenant not in found:
        raise Refusal(ServerError.TopicNotFound, f"Tenant {tenant} does not exist")
    return web.json_response([f"{tenant}/{name}" for name in sorted(found[tenant])])


async def show_namespace(request: web.Request) -> web.Response:
    """GET: policies, of which there are none."""
    await _known(request)
    return web.json_response({"replication_clusters": [request.app[BROKER].config.cluster_name], "deleted": False})


async def make_namespace(request: web.Request) -> web.Response:
    """PUT: remember the name."""
    info = request.match_info
    await _remember(request, f"{_POLICIES}/{info['tenant']}/{info['namespace']}", {})
    return done()


async def list_topics_of_namespace(request: web.Request) -> web.Response:
    """GET: all persistent topics and partitions."""
    tenant, namespace = await _known(request)
    return web.json_response(sorted(request.app[BROKER].catalog.topics(tenant, namespace)))


async def _remember(request: web.Request, path: str, value: dict[str, Any]) -> None:
    await request.app[BROKER].store.metadata.put(path, json.dumps(value).encode())


ROUTES: Routes = [
    ("GET", "/admin/v2/tenants", list_tenants),
    ("GET", "/admin/v2/tenants/{tenant}", show_tenant),
    ("PUT", "/admin/v2/tenants/{tenant}", make_tenant),
    ("POST", "/admin/v2/tenants/{tenant}", make_tenant),
    ("GET", "/admin/v2/namespaces/{tenant}", list_namespaces),
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}", show_namespace),
    ("PUT", "/admin/v2/namespaces/{tenant}/{namespace}", make_namespace),
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics", list_topics_of_namespace),
]
