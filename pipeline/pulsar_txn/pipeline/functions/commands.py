"""Commands of `pulsar-txn functions`: those of `pulsar-admin functions` for Python functions, and the worker that runs them.

Each command but `localrun` and `worker` is one request to the broker's HTTP port. The script finds them by the entry-point
group `pulsar_txn.commands`. click and aiohttp come with the extra `broker`, as the script does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
import click

from pulsar_txn.client.errors import InvalidConfiguration, PulsarError, UsageError
from pulsar_txn.client.inside import Secret, shown
from pulsar_txn.pipeline.functions import _command
from pulsar_txn.pipeline.functions._loading import check_upload
from pulsar_txn.pipeline.functions.config import FunctionConfig
from pulsar_txn.pipeline.functions.worker.broker_api import function_config

F = TypeVar("F", bound=Callable[..., Any])

_REFUSED: Final = 1
_UNAVAILABLE: Final = 69
_ADMIN_URL: Final = "http://127.0.0.1:8080"
_PATIENCE: Final = aiohttp.ClientTimeout(total=60)

admin_url_option: Final = click.option(
    "--admin-url", default=_ADMIN_URL, envvar="PULSAR_ADMIN_URL", show_default=True, help="HTTP of the broker."
)


def named(command: F) -> F:
    """Add the options that name a function."""
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
    """Ask the broker: a value of JSON, or a text in which other bytes are surrogates. Errors are those that `run` reports."""
    url = f"{admin_url.rstrip('/')}/admin/v3/functions/{path}"
    try:
        async with aiohttp.ClientSession(timeout=_PATIENCE) as session, session.request(method, url, **options) as answer:
            text = await answer.text(errors="surrogateescape")
    except (aiohttp.ClientError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise _UnansweredError(f"no broker answers at {admin_url} ({reason}); check --admin-url") from error
    if answer.status >= 400:
        raise _RefusedError(_reason(text) or f"the broker answered {answer.status}")
    if answer.content_type != "application/json":
        return text or None
    return json.loads(text) if text else None


class _RefusedError(Exception):
    """Refusal of the broker."""


class _UnansweredError(Exception):
    """Failure to get an answer from the broker."""


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return text[:500]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run it; what fails ends the command with its code."""
    try:
        return asyncio.run(work)
    except _UnansweredError as error:
        raise ended(error, _UNAVAILABLE) from error
    except (_RefusedError, OSError, UsageError) as error:
        raise ended(error, _REFUSED) from error


def ended(error: Exception, code: int) -> SystemExit:
    """Say what failed; raise what it returns."""
    click.echo(f"pulsar-txn: {shown(str(error))}", err=True)
    return SystemExit(code)


@click.command("trigger")
@named
@admin_url_option
@click.option("--topic", help="Which input; not needed where there is one.")
@click.option("--trigger-value", help="What the function is given, as text.")
@click.option("--trigger-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file with it.")
def trigger(topic: str | None, trigger_value: str | None, trigger_file: Path | None, **told: Any) -> None:
    """Send one message to an input and print the function's output for it. Consumers of the input see the message too."""
    if (trigger_value is None) == (trigger_file is None):
        raise click.UsageError("say what the function is given: --trigger-value or --trigger-file")
    form = aiohttp.FormData()
    if trigger_file is not None:
        form.add_field("dataStream", trigger_file.read_bytes(), filename=trigger_file.name)
    else:
        form.add_field("data", str(trigger_value), content_type="text/plain")
    if topic is not None:
        form.add_field("topic", topic, content_type="text/plain")
    found = _ask(told, "POST", "/trigger", data=form)
    if found is not None:
        click.echo(str(found).encode(errors="surrogateescape"))


@click.command("querystate")
@named
@admin_url_option
@click.option("--key", "-k", required=True)
def query_state(key: str, **told: Any) -> None:
    """Show the committed value of a key of the state."""
    click.echo(json.dumps(_ask(told, "GET", f"/state/{_quoted(key)}"), indent=2))


@click.command("putstate")
@named
@admin_url_option
@click.option("--state", "-s", required=True, help="JSON: key, and stringValue, byteValue (base64) or numberValue.")
def put_state(state: str, **told: Any) -> None:
    """Set a key of the state. The function's instance is stopped for that and started again."""
    try:
        key = json.loads(state)["key"]
    except (ValueError, KeyError, TypeError):
        raise click.BadParameter("it should be a JSON object with key", param_hint="--state") from None
    form = aiohttp.FormData()
    form.add_field("state", state, content_type="application/json")
    _ask(told, "POST", f"/state/{_quoted(str(key))}", data=form)
    click.echo(f"{key} is set")


def _ask(told: dict[str, Any], method: str, path: str, **options: Any) -> Any:
    function = path_of(told["tenant"], told["namespace"], told["name"], told["fqfn"])
    return run(ask(told["admin_url"], method, function + path, **options))


def _quoted(key: str) -> str:
    return quote(key, safe="")


_USAGE: Final = 2
REPLACED: Final = 75
"""The worker ended because another one has taken over."""


@click.group("functions")
def functions() -> None:
    """Manage the Python functions that a broker keeps and a functions worker runs.

    Exit codes: 0 done, 1 the broker refused, 2 usage or configuration, 69 the broker does not answer.
    """


# ---- create and update


def _configured(command: F) -> F:
    """Add the options of a configuration, with the official names."""
    for name, key in (_command.NUMBERS | _command.TRUTHS).items():
        kind: Any = int if name in _command.NUMBERS else bool
        command = click.option(f"--{name.replace('_', '-')}", type=kind, help=f"Key {key}.")(command)
    for name, key in (_command.TEXTS | _command.DOCUMENTS).items():
        flags = ("--output", "-o") if name == "output" else (f"--{name.replace('_', '-')}",)
        command = click.option(*flags, help=f"Key {key}{', as JSON' if name in _command.DOCUMENTS else ''}.")(command)
    command = click.option("--inputs", "-i", help="Topics, separated by commas.")(command)
    return click.option("--function-config-file", type=click.Path(), help="YAML with the official keys.")(command)


@functions.command("create")
@admin_url_option
@_configured
def create(admin_url: str, **told: Any) -> None:
    """Upload a function and start it. A flag overrides the same key of the file."""
    keys, config = _read(told)
    if config.py is None:
        raise click.UsageError("say where the function is: --py, or py in the file")
    _check(config.class_name, config.py)
    run(_send(admin_url, "POST", config.fqfn, keys, config.py))
    click.echo(f"{config.fqfn} is created")


@functions.command("update")
@admin_url_option
@_configured
def update(admin_url: str, **told: Any) -> None:
    """Change the given keys of a function and restart its instances. With --py, upload a new file."""
    keys = _keys(told)
    fqfn = keys.pop("fqfn", None) or path_of(
        keys.get("tenant", "public"), keys.get("namespace", "default"), keys.get("name"), None
    )
    if keys.get("py") is not None and keys.get("className") is not None:
        _check(keys["className"], keys["py"])
    run(_send(admin_url, "PUT", fqfn, keys, keys.get("py")))
    click.echo(f"{fqfn} is updated")


def _keys(told: dict[str, Any]) -> dict[str, Any]:
    try:
        return _command.keys_of(argparse.Namespace(**told))
    except (PulsarError, OSError) as error:
        raise ended(error, _USAGE) from error


def _read(told: dict[str, Any]) -> tuple[dict[str, Any], FunctionConfig]:
    keys = _keys(told)
    try:
        return keys, FunctionConfig.from_mapping(function_config(keys))
    except InvalidConfiguration as error:
        raise ended(error, _USAGE) from error


def _check(class_name: str | None, py: str) -> None:
    try:
        check_upload(class_name, py)
    except (InvalidConfiguration, OSError) as error:
        raise ended(error, _USAGE) from error


async def _send(admin_url: str, method: str, fqfn: str, keys: dict[str, Any], py: str | None) -> None:
    form = aiohttp.FormData()
    file = None if py is None else Path(py)
    tenant, namespace, name = fqfn.split("/")
    config = {key: value for key, value in keys.items() if key != "fqfn"}
    config |= {"tenant": tenant, "namespace": namespace, "name": name, "runtime": "PYTHON"}
    if file is not None:
        config["py"] = file.name
        form.add_field("data", file.read_bytes(), filename=file.name, content_type="application/octet-stream")
    form.add_field("functionConfig", json.dumps(config), content_type="application/json")
    await ask(admin_url, method, fqfn, data=form)


# ---- the others


def _simple(name: str, method: str, path: str, text: str, said: str | None, *, of_instance: bool = False) -> None:
    def command(
        admin_url: str, tenant: str, namespace: str, name: str | None, fqfn: str | None, instance_id: int | None = None
    ) -> None:
        function = path_of(tenant, namespace, name, fqfn)
        at = f"{function}{'' if instance_id is None else f'/{instance_id}'}{path}"
        found = run(ask(admin_url, method, at))
        if isinstance(found, dict) and isinstance(found.get("secrets"), dict):
            found["secrets"] = dict.fromkeys(found["secrets"], str(Secret("")))
        click.echo(json.dumps(found, indent=2) if said is None else f"{function} {said}")

    command.__doc__ = text
    wrapped = named(admin_url_option(command))
    if of_instance:
        wrapped = click.option("--instance-id", type=click.IntRange(0), help="Only this instance.")(wrapped)
    functions.command(name)(wrapped)


_simple("get", "GET", "", "Show the configuration.", None)
_simple("status", "GET", "/status", "Show the state and the errors of the instances.", None, of_instance=True)
_simple("stats", "GET", "/stats", "Show the counters of the instances.", None, of_instance=True)
_simple("start", "POST", "/start", "Start a stopped function.", "is started", of_instance=True)
_simple("stop", "POST", "/stop", "Stop the function and keep its configuration.", "is stopped", of_instance=True)
_simple("restart", "POST", "/restart", "Stop the instances and start new ones.", "is restarted", of_instance=True)
_simple("delete", "DELETE", "", "Stop the function and delete it. Its topics stay.", "is deleted")


@functions.command("list")
@admin_url_option
@click.option("--tenant", default="public", show_default=True)
@click.option("--namespace", default="default", show_default=True)
def list_functions(admin_url: str, tenant: str, namespace: str) -> None:
    """Show the names of the functions in a namespace."""
    for name in run(ask(admin_url, "GET", f"{tenant}/{namespace}")):
        click.echo(name)


@functions.command("localrun", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def localrun(arguments: tuple[str, ...]) -> None:
    """Run a function in this process, without a worker; --help lists its options."""
    raise SystemExit(_command.main(["localrun", *arguments], program="pulsar-txn functions"))


@functions.command("worker")
@admin_url_option
@click.option("--with-parent", is_flag=True, help="End when the standard input ends, as it does when the parent process dies.")
def worker(admin_url: str, with_parent: bool) -> None:
    """Run the functions of a broker until SIGTERM. `pulsar-txn standalone --functions` starts this command itself.

    Exit code 75: another worker has taken over.
    """
    from pulsar_txn.pipeline.functions.worker.broker_api import WorkerReplaced
    from pulsar_txn.pipeline.functions.worker.worker import work

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    try:
        asyncio.run(work(admin_url, with_parent=with_parent))
    except WorkerReplaced as error:
        raise ended(error, REPLACED) from error


for _each in (trigger, query_state, put_state):
    functions.add_command(_each)
