"""The demo: Spark settles a month of flights while broker, driver and executors are killed; exact to the cent.

    python examples/flights [--flights small|jan|…|all] [--pulsar-url pulsar://…] [--report DIR] [--seed N]

Exit code 0 when every check holds, 1 when one does not, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import shutil
import signal
import sys
import time
import uuid
from pathlib import Path

from data import MONTHS, flights_file
from demo import Demo
from processes import DemoFailedError
from rich.console import Console


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="examples/flights", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--flights", choices=["small", *MONTHS, "all"], default="jan", help="small: 2,000 of January")
    parser.add_argument("--pulsar-url", default=os.environ.get("PULSAR_URL") or None, help="a cluster with transactions")
    parser.add_argument("--report", type=Path, default=Path("demo-report"), help="folder for the report and all logs")
    parser.add_argument("--no-spark", action="store_true", help="only the worker, without the main job")
    parser.add_argument("--seed", type=int, help="chooses the random moments; default: another one each time")
    return parser.parse_args()


def main() -> int:
    """Run it."""
    given = arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    logging.getLogger("pulsar_txn").setLevel(logging.ERROR)  # reconnects are what this is about
    try:
        flights_file()
    except FileNotFoundError as error:
        console.print(str(error))
        return 2
    folder: Path = given.report.resolve()
    if folder.exists():
        if any(folder.iterdir()) and not (folder / ".demo").exists():
            console.print(f"{folder} holds something else than a report of this demo; choose another --report", soft_wrap=True)
            return 2
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / ".demo").touch()
    prefix = f"demo-{uuid.uuid4().hex[:8]}-" if given.pulsar_url else ""
    seed = secrets.randbelow(10_000) if given.seed is None else given.seed
    begin = time.monotonic()
    demo = Demo(console, folder, given.flights, outside=given.pulsar_url, prefix=prefix, spark=not given.no_spark, seed=seed)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let programs in the background ignore it
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))  # ends as Ctrl-C does
    try:
        problems = asyncio.run(demo.run())
    except KeyboardInterrupt:
        console.print("interrupted; all processes are ended")
        if (folder / "index.html").exists():
            console.print(f"what happened until then: {folder / 'index.html'}", soft_wrap=True)
        return 130
    except BaseExceptionGroup as group:
        failed = group.subgroup(DemoFailedError)
        if failed is None:
            raise
        problems = [str(error) for error in _flat(failed)]
    except DemoFailedError as error:
        problems = [str(error)]
    for problem in problems:
        console.print(f"[bold red]✗[/] {problem}", soft_wrap=True)
    verdict = "[bold red]FAILED[/]" if problems else "[bold green]all totals agree to the cent[/]"
    report = folder / "index.html"
    where = report if report.exists() else f"there is no report; the logs are in {folder}"
    console.print(f"{verdict} · {time.monotonic() - begin:.0f} s · {where}", soft_wrap=True)
    return 1 if problems else 0


def _flat(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _flat(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


if __name__ == "__main__":
    sys.exit(main())
