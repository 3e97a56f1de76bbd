"""`pulsar-txn check`: read everything in a data folder and say what is wrong with it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import attrs
import click

from pulsar_txn.ledger.journal import Finding, check

from .exits import STORAGE_FAILED, STORE_REFUSED, USAGE, Ending


@click.command("check")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="A list of findings, with their places.")
def command(folder: Path, as_json: bool) -> None:
    """Check the data FOLDER of a broker that is stopped: every frame, entry and snapshot. Changes nothing.

    Exit codes: 0 nothing is wrong, 74 something is damaged, 73 the folder is in use or cannot be read, 2 no such folder.
    """
    if not folder.is_dir():
        raise Ending(USAGE, f"{folder} is not a folder; name the data folder of a broker")
    try:
        findings = asyncio.run(check(folder))
    except OSError as error:
        raise Ending(STORE_REFUSED, f"{folder} cannot be read: {error.strerror}") from error
    if as_json:
        click.echo(json.dumps([_as_dict(each) for each in findings], indent=2))
    else:
        for each in findings:
            click.echo(each.detail)
    if findings:
        what = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        raise Ending(STORAGE_FAILED, f"{folder} is damaged, {what}")
    if not as_json:
        click.echo(f"{folder}: nothing is wrong")


def _as_dict(finding: Finding) -> dict[str, object]:
    return attrs.asdict(finding)
