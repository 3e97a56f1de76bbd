"""`pulsar-txn functions …`: the commands of `pulsar-admin functions` for Python functions, and the worker that runs them.

Found by the entry-point group `pulsar_txn.commands`. click and aiohttp come with the extra `broker`, as the script does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from pathlib import Path
from typing import Any, Final

import aiohttp
import click

from pulsar_txn.client.errors import InvalidConfiguration, PulsarError
from pulsar_txn.client.inside import Secret
from pulsar_txn.pipeline.functions import _command, _state_commands
from pulsar_txn.pipeline.functions._asking import F, admin_url_option, ask, ended, named, path_of, run
from pulsar_txn.pipeline.functions._uploads import check_upload
from pulsar_txn.pipeline.functions.config import FunctionConfig
from pulsar_txn.pipeline.functions.worker.specs import function_config

_USAGE: Final = 2
REPLACED: Final = 75
"""The worker ended because another one has taken over."""


@click.group("functions")
def functions() -> None:
    """Python functions that a broker keeps and a functions worker runs.

    Exit codes: 0 done, 1 the broker refused, 2 usage or configuration, 69 the broker does not answer.
    """


# ---- create and update


def _configured(command: F) -> F:
    """The options of a configuration, with the official names."""
    for name in (*_command.NUMBERS, *_command.TRUTHS):
        kind: Any = int if name in _command.NUMBERS else bool
        command = click.option(f"--{name.replace('_', '-')}", type=kind)(command)
    for name in (*_command.TEXTS, *_command.DOCUMENTS):
        flags = ("--output", "-o") if name == "output" else (f"--{name.replace('_', '-')}",)
        command = click.option(*flags, help="JSON." if name in _command.DOCUMENTS else None)(command)
    command = click.option("--inputs", "-i", help="Topics, separated by commas.")(command)
    return click.option("--function-config-file", type=click.Path(), help="YAML with the official keys.")(command)


@functions.command("create")
@admin_url_option
@_configured
def create(admin_url: str, **told: Any) -> None:
    """Upload a function and start it. A flag overrules the same key of the file."""
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
    """Change a function; what is not said stays. With --py a new file is uploaded. Its instances begin again."""
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
_simple("status", "GET", "/status", "Show how the instances are.", None, of_instance=True)
_simple("stats", "GET", "/stats", "Show what the instances have done.", None, of_instance=True)
_simple("start", "POST", "/start", "Start what was stopped.", "is started", of_instance=True)
_simple("stop", "POST", "/stop", "Stop the function, and keep it.", "is stopped", of_instance=True)
_simple("restart", "POST", "/restart", "End the processes and start new ones.", "begins again", of_instance=True)
_simple("delete", "DELETE", "", "Stop the function and forget it. Its topics and subscriptions stay.", "is deleted")


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
    raise SystemExit(_command.main(["localrun", *arguments]))


@functions.command("worker")
@admin_url_option
@click.option("--with-parent", is_flag=True, help="End when the standard input ends, as it does when the parent process dies.")
def worker(admin_url: str, with_parent: bool) -> None:
    """Run the functions of a broker until SIGTERM. `pulsar-txn standalone --functions` starts this command itself.

    Exit code 75: another worker has taken over.
    """
    from pulsar_txn.pipeline.functions.worker.door import WorkerReplaced
    from pulsar_txn.pipeline.functions.worker.worker import work

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    try:
        asyncio.run(work(admin_url, with_parent=with_parent))
    except WorkerReplaced as error:
        raise ended(error, REPLACED) from error


for _each in (_state_commands.trigger, _state_commands.query_state, _state_commands.put_state):
    functions.add_command(_each)
