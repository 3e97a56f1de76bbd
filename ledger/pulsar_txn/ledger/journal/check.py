"""Check a store that nobody uses: every frame, every entry, every snapshot. Changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import attrs

from pulsar_txn.ledger.journal import folder as folders
from pulsar_txn.ledger.journal.files import Files, RealFiles
from pulsar_txn.ledger.journal.findings import Finding, of_error
from pulsar_txn.ledger.journal.mark import marked_segment
from pulsar_txn.ledger.journal.reader import RunReader
from pulsar_txn.ledger.journal.recovery import recover
from pulsar_txn.ledger.journal.segments import SEGMENT_NAME, OpenSegments
from pulsar_txn.ledger.journal.state import LogState
from pulsar_txn.ledger.protocols import LogDamaged, ReadFailed

_BATCH_ENTRIES = 1000
_BATCH_BYTES = 4 << 20


async def check(folder: str | Path, *, files: Files | None = None) -> list[Finding]:
    """All that is wrong in `folder`, empty when nothing is; a torn tail is nothing wrong.

    Raises StoreInUse, StoreTooNew, StoreUnsupported; OSError when the folder cannot be locked.
    """
    files = files or RealFiles()
    path = str(folder)
    try:
        files.names(path)
    except OSError as error:
        return [Finding(None, None, f"{path} cannot be read: {error.strerror}", unreadable=True, fatal=True)]
    lock = folders.enter(files, path)
    try:
        return await check_copy(path, files=files)
    finally:
        files.close(lock)


async def check_copy(path: str, *, files: Files) -> list[Finding]:
    """The same of a folder that no store uses, a backup for instance: takes no lock and writes nothing."""
    opened = OpenSegments(files, read_only=True)
    opened.busy_from = 1 << 63
    try:
        return await _check_folder(files, path, opened)
    except (LogDamaged, ReadFailed) as error:
        return [of_error(error, "folder", fatal=True)]
    except OSError as error:
        return [Finding(None, None, f"{error.filename or path} cannot be read: {error.strerror}", unreadable=True, fatal=True)]
    finally:
        opened.close_all()


async def _check_folder(files: Files, path: str, opened: OpenSegments) -> list[Finding]:
    form = folders.read_format(files, path)
    if form is None:
        return [Finding(None, None, f"{path} holds no journal")]
    names = files.names(path)
    for name in names:
        if match := SEGMENT_NAME.fullmatch(name):
            opened.find(int(match[1]), f"{path}/{name}")
    marked = marked_segment(names)
    found = recover(opened, form.uuid, started=form.started, marked=marked)
    findings = folders.check_mark(form, marked) + [finding for finding in found.findings if finding.kind != "log"]
    reader = RunReader(opened)
    for log in found.state.logs.values():
        findings += await _check_log(reader, log)
    return findings


async def _check_log(reader: RunReader, log: LogState) -> list[Finding]:
    """Every entry of a log; after damage, on with the entry after it."""
    findings: list[Finding] = []
    entry, last = log.first_entry, log.next_entry - 1
    stored = log.durable_snapshot()
    if stored is not None:
        for serial in range(stored.first, stored.first + stored.count):
            await asyncio.sleep(0)
            try:
                reader.part(log, stored, serial)
            except (LogDamaged, ReadFailed) as error:
                findings.append(of_error(error, "snapshot"))
    while entry <= last:
        await asyncio.sleep(0)
        try:
            entry += len(reader.entries(log, entry, last, _BATCH_ENTRIES, _BATCH_BYTES))
        except (LogDamaged, ReadFailed) as error:
            _add_entry(findings, attrs.evolve(of_error(error, "entry"), position=(log.ledger_id, entry)))
            entry += 1
    return findings


def _add_entry(findings: list[Finding], found: Finding) -> None:
    """One finding for entries in a row: a lost segment has a million of them."""
    last = findings[-1] if findings else None
    if last is not None and last.position is not None and found.position is not None:
        ledger_id, entry = last.position
        follows = found.position == (ledger_id, entry + last.entries) and last.kind == "entry"
        if follows and last.unreadable == found.unreadable:
            detail = f"{last.detail.removesuffix(_and_more(last))}{_and_more(attrs.evolve(last, entries=last.entries + 1))}"
            findings[-1] = attrs.evolve(last, entries=last.entries + 1, detail=detail)
            return
    findings.append(found)


def _and_more(finding: Finding) -> str:
    return f" (and {finding.entries - 1} more after it)" if finding.entries > 1 else ""
