"""Tenants and namespaces, and the policies that are obeyed. Every name may be used without being made."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from pulsar_txn.broker.base.sorted_names import behind, in_order
from pulsar_txn.broker.catalog.policies import DELAYED_DELIVERY, ENCRYPTION_REQUIRED
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.topics import TopicName, check_namespace

from .answers import Routes, body_text, done, failed, flag, json_body
from .common import BROKER
from .lists import after, names_response

_DELAY_KEYS = {"active": bool, "tickTime": int, "maxDeliveryDelayInMillis": int}


async def _known(request: web.Request, missing: str = "Namespace does not exist") -> tuple[str, str]:
    """The namespace that the path names. Refusal TopicNotFound."""
    tenant, namespace = request.match_info["tenant"], request.match_info["namespace"]
    if not await request.app[BROKER].namespaces.has(tenant, namespace):
        raise Refusal(ServerError.TopicNotFound, missing)
    return tenant, namespace


# ---- tenants


async def list_tenants(request: web.Request) -> web.Response:
    """GET: names."""
    return web.json_response(sorted(await request.app[BROKER].namespaces.tenants()))


async def show_tenant(request: web.Request) -> web.Response:
    """GET: who may administrate it (everybody), and where it is."""
    broker, tenant = request.app[BROKER], request.match_info["tenant"]
    if tenant not in await broker.namespaces.tenants():
        raise Refusal(ServerError.TopicNotFound, f"Tenant {tenant} does not exist")
    return web.json_response({"adminRoles": [], "allowedClusters": [broker.config.cluster_name]})


async def make_tenant(request: web.Request) -> web.Response:
    """PUT: remember the name; 409 when it is there. POST: there is nothing to change."""
    namespaces, tenant = request.app[BROKER].namespaces, request.match_info["tenant"]
    check_namespace(tenant)
    if request.method == "PUT" and tenant in await namespaces.tenants():
        raise Refusal(ServerError.NotAllowedError, "Tenant already exist")
    await namespaces.put_tenant(tenant)
    return done()


async def delete_tenant(request: web.Request) -> web.Response:
    """DELETE: 409 while it has namespaces."""
    namespaces, tenant = request.app[BROKER].namespaces, request.match_info["tenant"]
    if tenant not in await namespaces.tenants():
        raise Refusal(ServerError.TopicNotFound, "Tenant doesn't exist")
    if await namespaces.of_tenant(tenant):
        raise Refusal(ServerError.NotAllowedError, "The tenant still has active namespaces")
    await namespaces.delete_tenant(tenant)
    return done()


# ---- namespaces


async def list_namespaces(request: web.Request) -> web.StreamResponse:
    """GET: full names."""
    tenant, namespaces = request.match_info["tenant"], request.app[BROKER].namespaces
    if tenant not in await namespaces.tenants():
        raise Refusal(ServerError.TopicNotFound, f"Tenant {tenant} does not exist")
    names = [f"{tenant}/{name}" for name in await namespaces.of_tenant(tenant)]
    return await names_response(request, behind(await in_order(names, request.app[BROKER].turn.budget), after(request)))


async def show_namespace(request: web.Request) -> web.Response:
    """GET: policies."""
    broker = request.app[BROKER]
    stored = await broker.namespaces.policies(*await _known(request))
    fixed = {"replication_clusters": [broker.config.cluster_name], ENCRYPTION_REQUIRED: False, "deleted": False}
    return web.json_response(fixed | stored)


async def make_namespace(request: web.Request) -> web.Response:
    """PUT, with policies in the body or nothing: 409 when it is there."""
    broker, info = request.app[BROKER], request.match_info
    tenant, namespace = info["tenant"], info["namespace"]
    check_namespace(tenant, namespace)
    policies = await json_body(request) if await body_text(request) else {}
    if not isinstance(policies, dict):
        raise web.HTTPBadRequest(text="the body should be policies, a JSON object")
    _check(policies)
    if await broker.namespaces.has(tenant, namespace):
        raise Refusal(ServerError.NotAllowedError, "Namespace already exists")
    await broker.change_policies(tenant, namespace, policies)
    return done()


async def delete_namespace(request: web.Request) -> web.Response:
    """DELETE: 409 while it has topics; with `force=true` they go too, where the broker allows it (405)."""
    broker, info = request.app[BROKER], request.match_info
    tenant, namespace = await _known(request, f"Namespace {info['tenant']}/{info['namespace']} does not exist.")
    force = flag(request, "force")
    if force and not broker.config.force_delete_namespace_allowed:
        return failed(405, "Broker doesn't allow forced deletion of namespaces")
    if not force and broker.catalog.index.has(tenant, namespace):
        raise Refusal(ServerError.NotAllowedError, "Cannot delete non empty namespace")
    await broker.delete_namespace(tenant, namespace)
    return done()


async def list_topics_of_namespace(request: web.Request) -> web.StreamResponse:
    """GET: all persistent topics and partitions."""
    tenant, namespace = await _known(request)
    return await names_response(request, request.app[BROKER].catalog.index.topics(tenant, namespace, after(request)))


# ---- policies


def _check(policies: dict[str, Any]) -> None:
    """HTTPBadRequest for a policy that is obeyed here and has a value of another kind."""
    if not isinstance(policies.get(ENCRYPTION_REQUIRED, False), bool):
        raise web.HTTPBadRequest(text=f"{ENCRYPTION_REQUIRED} should be true or false")
    delayed = policies.get(DELAYED_DELIVERY)
    if delayed is None:
        return
    if not isinstance(delayed, dict) or any(type(delayed.get(key, kind())) is not kind for key, kind in _DELAY_KEYS.items()):
        raise web.HTTPBadRequest(text=f"a policy of delays has {', '.join(_DELAY_KEYS)}: a truth value and two numbers")


async def _change(request: web.Request, key: str, value: Any) -> web.Response:
    broker, (tenant, namespace) = request.app[BROKER], await _known(request)
    policies = await broker.namespaces.policies(tenant, namespace)
    policies.pop(key, None)
    if value is not None:
        policies[key] = value
    _check(policies)
    await broker.change_policies(tenant, namespace, policies)
    return done()


async def show_encryption(request: web.Request) -> web.Response:
    """GET: whether only encrypted messages are taken."""
    stored = await request.app[BROKER].namespaces.policies(*await _known(request))
    return web.json_response(stored.get(ENCRYPTION_REQUIRED, False))


async def change_encryption(request: web.Request) -> web.Response:
    """POST true or false; DELETE: as the broker is configured."""
    return await _change(request, ENCRYPTION_REQUIRED, None if request.method == "DELETE" else await json_body(request))


async def show_delays(request: web.Request) -> web.Response:
    """GET: `active`, `tickTime` and `maxDeliveryDelayInMillis`; nothing when the namespace does not say."""
    found = (await request.app[BROKER].namespaces.policies(*await _known(request))).get(DELAYED_DELIVERY)
    return web.Response() if found is None else web.json_response(found)


async def change_delays(request: web.Request) -> web.Response:
    """POST such a policy; DELETE: as the broker is configured. What is left out is 0 or false."""
    if request.method == "DELETE":
        return await _change(request, DELAYED_DELIVERY, None)
    body = await json_body(request)
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="the body should be a policy of delays, a JSON object")
    return await _change(request, DELAYED_DELIVERY, {key: body.get(key, kind()) for key, kind in _DELAY_KEYS.items()})


async def unload_namespace(request: web.Request) -> web.Response:
    """PUT unload: close its topics; they are opened again when somebody asks."""
    broker, (tenant, namespace) = request.app[BROKER], await _known(request)
    pieces = broker.catalog.index.topics(tenant, namespace)
    open_ones = (TopicName.parse(name) for piece in pieces for name in piece if name in broker.topics)
    await broker.turn.budget.for_all(open_ones, broker.unload_topic)
    return done()


_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"

ROUTES: Routes = [
    ("GET", "/admin/v2/tenants", list_tenants),
    ("GET", "/admin/v2/tenants/{tenant}", show_tenant),
    ("PUT", "/admin/v2/tenants/{tenant}", make_tenant),
    ("POST", "/admin/v2/tenants/{tenant}", make_tenant),
    ("DELETE", "/admin/v2/tenants/{tenant}", delete_tenant),
    ("GET", "/admin/v2/namespaces/{tenant}", list_namespaces),
    ("GET", _NAMESPACE, show_namespace),
    ("PUT", _NAMESPACE, make_namespace),
    ("DELETE", _NAMESPACE, delete_namespace),
    ("GET", f"{_NAMESPACE}/topics", list_topics_of_namespace),
    ("PUT", f"{_NAMESPACE}/unload", unload_namespace),
    ("GET", f"{_NAMESPACE}/encryptionRequired", show_encryption),
    ("POST", f"{_NAMESPACE}/encryptionRequired", change_encryption),
    ("DELETE", f"{_NAMESPACE}/encryptionRequired", change_encryption),
    ("GET", f"{_NAMESPACE}/delayedDelivery", show_delays),
    ("POST", f"{_NAMESPACE}/delayedDelivery", change_delays),
    ("DELETE", f"{_NAMESPACE}/delayedDelivery", change_delays),
]
