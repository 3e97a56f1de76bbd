"""`pulsar-txn functions trigger|querystate|putstate`: one message through a function that runs, and its state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import click

from pulsar_txn.pipeline.functions._asking import admin_url_option, ask, named, path_of, run


@click.command("trigger")
@named
@admin_url_option
@click.option("--topic", help="Which input; not needed where there is one.")
@click.option("--trigger-value", help="What the function is given, as text.")
@click.option("--trigger-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file with it.")
def trigger(topic: str | None, trigger_value: str | None, trigger_file: Path | None, **told: Any) -> None:
    """Send one message to an input and print the function's output for it. It is a message as any other."""
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
    """Show what the state has under a key, as far as it is committed."""
    click.echo(json.dumps(_ask(told, "GET", f"/state/{_quoted(key)}"), indent=2))


@click.command("putstate")
@named
@admin_url_option
@click.option("--state", "-s", required=True, help="JSON: key, and stringValue, byteValue (base64) or numberValue.")
def put_state(state: str, **told: Any) -> None:
    """Set a key of the state. The function's instance ends meanwhile, and begins again."""
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
