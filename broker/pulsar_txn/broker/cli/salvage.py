"""`pulsar-txn salvage`: get a damaged data folder to serve again without a backup, and say first what that costs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from pulsar_txn.ledger.journal import Finding, JournalStore, check
from pulsar_txn.ledger.journal import folder as folders
from pulsar_txn.ledger.journal.check import Repair, carry_out, plan_frame, plan_index, plan_reset, reset_log
from pulsar_txn.ledger.journal.files import RealFiles

from .exits import STORAGE_FAILED, STORE_REFUSED, USAGE, Ending


@click.command("salvage")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--frame", metavar="SEGMENT:OFFSET", help="Set this damaged frame aside, so that the broker starts again.")
@click.option(
    "--index", metavar="SEGMENT", type=click.IntRange(0), help="Write the index of this segment again; loses nothing."
)
@click.option("--log", metavar="NAME", help="Reset this damaged log: everything in it is forgotten.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(folder: Path, frame: str | None, index: int | None, log: str | None, yes: bool) -> None:
    """Repair the damaged data FOLDER of a stopped broker, one thing at a time. A backup is better: see `restore`.

    Without an option: what is wrong, and what to do about each. With one: what the repair loses, and after "yes" the repair.
    Make a copy of FOLDER first.

    Exit codes: 0 done, or nothing is wrong; 1 not possible or not wanted; 2 no such folder; 73 FOLDER is in use or cannot be
    written; 74 something is wrong.
    """
    if not folder.is_dir():
        raise Ending(USAGE, f"{folder} is not a folder; name the data folder of a broker")
    if sum(option is not None for option in (frame, index, log)) > 1:
        raise click.UsageError("one repair at a time: --frame, --index or --log")
    try:
        if log is not None:
            sizes = [path.stat().st_size for path in sorted(folder.glob("segment-*.journal"))]
            if not sizes:
                raise Ending(USAGE, f"{folder} holds no journal; name the data folder of a broker")
            # With segments of the size that is there, so that no file of another size is made.
            asyncio.run(_reset(JournalStore(folder, segment_bytes=sizes[-1]), log, yes=yes))
        elif frame is None and index is None:
            _advise(folder)
        else:
            _repair(folder, frame, index, yes=yes)
    except OSError as error:
        raise Ending(
            STORE_REFUSED, f"{error.filename or folder}: {error.strerror or error}; mend that and run the same command again"
        ) from error


def _advise(folder: Path) -> None:
    findings = asyncio.run(check(folder))
    for each in findings:
        click.echo(f"{each.detail}\n    {_advice(folder, each)}")
    if findings:
        raise Ending(STORAGE_FAILED, f"{folder} is damaged; a backup is the better way, where there is one")
    click.echo(f"{folder}: nothing is wrong")


def _advice(folder: Path, finding: Finding) -> str:
    salvage = f"pulsar-txn salvage {folder}"
    if finding.unreadable:
        return "it cannot be read at the moment: copy the folder to a healthy disk and look again"
    if finding.kind == "index":
        return f"nothing is lost; {salvage} --index {finding.segment} makes a new one"
    if finding.kind == "frame" and finding.offset:
        return f"{salvage} --frame {finding.segment}:{finding.offset} says what is lost without it"
    if finding.log is not None and finding.kind in ("log", "snapshot", "entry"):
        return f"{salvage} --log '{finding.log}' says what is lost when it is reset"
    if finding.fatal:
        return "no repair is possible: restore a backup (pulsar-txn restore)"
    if finding.kind == "segment":
        return (
            "logs that need it are named in findings of their own; without such, it is forgotten when the next segment is full"
        )
    return "the logs that had something there are named in findings of their own"


def _frame_position(text: str) -> tuple[int, int]:
    segment, _, offset = text.partition(":")
    if not (segment.isdecimal() and offset.isdecimal()):
        raise click.BadParameter(
            f"{text!r} is not SEGMENT:OFFSET, as `pulsar-txn salvage FOLDER` shows it", param_hint="--frame"
        )
    return int(segment), int(offset)


def _repair(folder: Path, frame: str | None, index: int | None, *, yes: bool) -> None:
    files, path = RealFiles(), str(folder)
    lock = folders.enter(files, path)
    try:
        plan = plan_index(files, path, index or 0) if frame is None else plan_frame(files, path, *_frame_position(frame))
        _tell(plan)
        _ask(yes=yes)
        carry_out(files, path, plan)
    finally:
        files.close(lock)
    click.echo(f"{plan.path}: repaired; look again with pulsar-txn salvage {folder}")


def _tell(plan: Repair) -> None:
    click.echo(f"{plan.path}: this loses {' '.join(plan.lost)}")
    if plan.aside is not None:
        click.echo("The bytes of the frame are kept in the folder set-aside.")
    for finding in plan.left:
        click.echo(f"left to repair then: {finding.detail}")


def _ask(*, yes: bool) -> None:
    if not yes:
        click.confirm("Repair it?", abort=True)


async def _reset(journal: JournalStore, name: str, *, yes: bool) -> None:
    async with journal as store:
        loss = plan_reset(store, name)
        count = loss.next_entry - loss.first_entry
        click.echo(f"log {name!r}: this loses {count} entries, {loss.first_entry} to {loss.next_entry - 1},")
        click.echo(f"    and its snapshot: {'yes' if loss.has_snapshot else 'it has none'}.")
        click.echo(f"    Its cursors go on after them: {', '.join(loss.cursors) or 'none'}.")
        click.echo("    The log of a coordinator or of pending acks holds the state of transactions: open ones are forgotten.")
        _ask(yes=yes)
        await reset_log(store, name)
    click.echo(f"log {name!r} is empty; the next entry in it is {loss.next_entry}")
