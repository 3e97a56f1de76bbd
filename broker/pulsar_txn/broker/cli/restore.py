"""`pulsar-txn restore`: a backup becomes the data folder of a broker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import click

from pulsar_txn.ledger.journal.backup import journal_names, read_backup, restore
from pulsar_txn.ledger.journal.files import RealFiles

from .exits import STORE_REFUSED, USAGE, Ending


@click.command("restore")
@click.argument("backup", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Move the journal that is in FOLDER aside, into FOLDER/replaced-N.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(backup: Path, folder: Path, replace: bool, yes: bool) -> None:
    """Put a BACKUP into the data FOLDER of a stopped broker.

    The whole BACKUP is read and checked before anything in FOLDER changes. A journal in FOLDER is never overwritten: with
    --replace it is moved aside. What was stored after the backup was taken is not in it.

    Exit codes: 0 done, 1 BACKUP is damaged, no backup, or FOLDER is not free, 2 no such folder, 73 FOLDER is in use or
    cannot be written.
    """
    if not backup.is_dir():
        raise Ending(USAGE, f"{backup} is not a folder; name a folder that pulsar-txn backup made")
    files = RealFiles()
    try:
        found = read_backup(files, str(backup))
        made_at = datetime.fromtimestamp(found.made_at, UTC).isoformat(" ", "seconds")
        click.echo(f"{backup}: a backup of {made_at}, {found.bytes} bytes; what was stored later is not in it")
        old = journal_names(files, str(folder)) if folder.is_dir() else []
        if old and replace:
            click.echo(f"{folder} holds a journal of {len(old)} files, which is moved into a folder replaced-… inside it")
            if not yes:
                click.confirm("Replace it?", abort=True)
        asyncio.run(restore(files, str(backup), str(folder), replace=replace))
    except OSError as error:
        text = f"{error.filename or folder}: {error.strerror or error}; run the same command again after mending that"
        raise Ending(STORE_REFUSED, text) from error
    click.echo(f"{folder}: restored; start the broker on it")
