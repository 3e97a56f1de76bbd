"""`pulsar-txn backup`: copy a data folder, also of a running broker, and prove that the copy is whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import click

from pulsar_txn.broker.base.runtime import AsyncioRuntime
from pulsar_txn.ledger.journal import folder as folders
from pulsar_txn.ledger.journal.backup import Backup, back_up, cut_of_closed
from pulsar_txn.ledger.journal.files import RealFiles
from pulsar_txn.ledger.protocols import Cut, StoreInUse

from .admin_requests import Admin
from .exits import REFUSED, STORE_REFUSED, UNAVAILABLE, USAGE, Ending

_HOLDS: Final = "/admin/pulsar-txn/v1/holds"


@click.command("backup")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--admin-url",
    default="http://127.0.0.1:8080",
    envvar="PULSAR_ADMIN_URL",
    show_default=True,
    help="HTTP of the broker that uses FOLDER; not needed when none does.",
)
def command(folder: Path, target: Path, admin_url: str) -> None:
    """Copy the data FOLDER of a broker, running or stopped, into TARGET, and check the copy.

    TARGET is empty or not there yet. The copy is the folder at one moment: everything that was confirmed before the backup
    began is in it. A running broker keeps its old segments until the copy is made.

    Exit codes: 0 done, 1 TARGET is not empty or the copy is not whole, 2 no such folder, 69 the broker does not answer, 73
    FOLDER cannot be read or TARGET cannot be written, 74 FOLDER is damaged.
    """
    if not folder.is_dir():
        raise Ending(USAGE, f"{folder} is not a folder; name the data folder of a broker")
    try:
        backup = asyncio.run(_Copier(str(folder), str(target), admin_url).run())
    except OSError as error:
        where = error.filename or target
        raise Ending(STORE_REFUSED, f"{where}: {error.strerror or error}; {target} is no backup, remove it") from error
    click.echo(f"{target}: {backup.bytes} bytes in {len(backup.files)} files, checked; restore it with pulsar-txn restore")


class _Copier:
    """One backup, with the lock of a stopped broker, or a hold of a running one."""

    def __init__(self, folder: str, target: str, admin_url: str) -> None:
        self._folder = folder
        self._target = target
        self._admin = Admin(admin_url, _HOLDS)
        self._runtime = AsyncioRuntime()
        self._hold = ""
        self._renew_at = 0.0
        self._renew_seconds = 0.0

    async def run(self) -> Backup:
        files = RealFiles()
        try:
            lock = folders.enter(files, self._folder)
        except StoreInUse:
            return await self._of_running(files)
        try:
            return await self._copy(files, cut_of_closed(files, self._folder))
        finally:
            files.close(lock)

    async def _of_running(self, files: RealFiles) -> Backup:
        try:
            told: dict[str, Any] = self._admin.ask("POST", "")
        except Ending as ending:
            if ending.code == UNAVAILABLE:
                text = f"{self._folder} is in use, and {ending.sentence}: name the broker that uses it, or stop it"
                raise Ending(UNAVAILABLE, text) from ending
            raise
        self._hold, cut = told["hold"], Cut(**told["cut"])
        self._renew_seconds = told["leaseSeconds"] / 4
        self._renew_at = self._runtime.monotonic() + self._renew_seconds
        try:
            backup = await self._copy(files, cut)
        finally:
            self._end()
        return backup

    async def _copy(self, files: RealFiles, cut: Cut) -> Backup:
        now = self._runtime.wall_ms() // 1000
        return await back_up(files, self._folder, self._target, cut, now=now, step=self._renew_in_time, still_held=self._renew)

    async def _renew_in_time(self) -> None:
        if self._runtime.monotonic() >= self._renew_at:
            await self._renew()

    async def _renew(self) -> None:
        """Have the broker say that it has recycled nothing; Ending when it may have."""
        if self._hold:
            self._admin.ask("PUT", f"/{self._hold}")
            self._renew_at = self._runtime.monotonic() + self._renew_seconds

    def _end(self) -> None:
        try:
            self._admin.ask("DELETE", f"/{self._hold}")
        except Ending as ending:
            if ending.code != REFUSED:  # an unreachable broker ends it with the lease
                click.echo(f"pulsar-txn: {ending.sentence}; the broker ends the hold by itself", err=True)
