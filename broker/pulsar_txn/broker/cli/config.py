"""`pulsar-txn config show`: what a broker would obey, and where each value comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import click

from pulsar_txn.broker.base.config import conf_key, load
from pulsar_txn.wire.secret_text import Secret, shown

from .options import command_line_of, load_config


@click.group("config")
def command() -> None:
    """Look at the configuration."""


@command.command("show")
@click.option("--conf", type=click.Path(path_type=Path), help="Configuration with Pulsar's keys; else the shipped one.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="As for standalone; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="One object: key to value and origin.")
def show(conf: Path | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Print every key with its value and its origin: FILE:LINE, environment, command line, or default."""
    loaded = load_config(load, conf, command_line_of(settings))
    for warning in loaded.warnings:
        click.echo(f"pulsar-txn: configuration: {warning}", err=True)
    rows = [
        (conf_key(field.name), _visible(getattr(loaded.config, field.name)), loaded.origins[field.name])
        for field in attrs.fields(type(loaded.config))
    ]
    if as_json:
        click.echo(json.dumps({key: {"value": value, "origin": origin} for key, value, origin in rows}, indent=2))
        return
    lines = [(f"{key}={_text(value)}", origin) for key, value, origin in rows]
    width = max(len(setting) for setting, _ in lines)
    for setting, origin in lines:
        click.echo(f"{setting:<{width}}  # {origin}")


def _visible(value: Any) -> Any:
    """The value; of a secret only the file that has it."""
    return value.shown if isinstance(value, Secret) else shown(value) if isinstance(value, str) else value


def _text(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
