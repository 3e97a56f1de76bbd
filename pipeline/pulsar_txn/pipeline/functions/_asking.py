"""Parts of the commands of `pulsar-txn functions`: which function, which broker, a question to it, and an orderly end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import aiohttp
import click

from pulsar_txn.client.errors import UsageError
from pulsar_txn.client.inside import shown

F = TypeVar("F", bound=Callable[..., Any])

_REFUSED: Final = 1
_UNAVAILABLE: Final = 69
_ADMIN_URL: Final = "http://127.0.0.1:8080"
_PATIENCE: Final = aiohttp.ClientTimeout(total=60)

admin_url_option: Final = click.option(
    "--admin-url", default=_ADMIN_URL, envvar="PULSAR_ADMIN_URL", show_default=True, help="HTTP of the broker."
)


def named(command: F) -> F:
    """The options that name a function."""
    command = click.option("--fqfn", help="tenant/namespace/name, instead of the three.")(command)
    command = click.option("--name", help="The function's name.")(command)
    command = click.option("--namespace", default="default", show_default=True)(command)
    return click.option("--tenant", default="public", show_default=True)(command)


def path_of(tenant: str, namespace: str, name: str | None, fqfn: str | None) -> str:
    """`tenant/namespace/name`. click's errors when it is not clear."""
    if fqfn is not None:
        if fqfn.count("/") != 2:
            raise click.BadParameter(f"{fqfn!r} is not tenant/namespace/name", param_hint="--fqfn")
        return fqfn
    if name is None:
        raise click.UsageError("say which function: --name, or --fqfn")
    return f"{tenant}/{namespace}/{name}"


async def ask(admin_url: str, method: str, path: str, **options: Any) -> Any:
    """Return what the broker answers: a value of JSON, or a text in which other bytes are surrogates. What `run` reports."""
    url = f"{admin_url.rstrip('/')}/admin/v3/functions/{path}"
    async with aiohttp.ClientSession(timeout=_PATIENCE) as session, session.request(method, url, **options) as answer:
        text = await answer.text(errors="surrogateescape")
        if answer.status >= 400:
            raise _RefusedError(_reason(text) or f"the broker answered {answer.status}")
        if answer.content_type != "application/json":
            return text or None
        return json.loads(text) if text else None


class _RefusedError(Exception):
    """The broker said no."""


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return text[:500]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run it; what fails ends the command with its code."""
    try:
        return asyncio.run(work)
    except (_RefusedError, OSError, UsageError) as error:
        code = _UNAVAILABLE if isinstance(error, aiohttp.ClientConnectionError) else _REFUSED
        raise ended(error, code) from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ended(error, _UNAVAILABLE) from error


def ended(error: Exception, code: int) -> SystemExit:
    """Say what failed; raise what it returns."""
    click.echo(f"pulsar-txn: {shown(str(error))}", err=True)
    return SystemExit(code)
