"""Archives of the classes that stock servers load: a server that has one starts with two thirds of the CPU.

Java calls this class data sharing. `make test` makes the archives, once, beside the fetched servers. Tests run without them
too, only longer. A Java that cannot use an archive, because it or a jar is another one, ignores it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import stock_install
from stock_pulsar import StartError, StockPulsar

_END_SECONDS: Final = 120.0


def make_all() -> None:
    """Make those of the fetched servers that are missing, or were made by another Java or in another folder."""
    homes = {version: stock_install.cache_dir() / f"apache-pulsar-{version}" for version in stock_install.VERSIONS}
    here = {version: home for version, home in homes.items() if home.is_dir()}
    if stock_install.missing_tools() is None:
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(_make, here, here.values()))


def _make(version: str, home: Path) -> None:
    archive = stock_install.class_archive(version)
    note, made_by = archive.with_suffix(".made-by"), f"{home.resolve()}\n{stock_install.java_says()}"
    if archive.exists() and note.exists() and note.read_text(encoding="utf-8") == made_by:
        return
    print(f"noting the classes that Apache Pulsar {version} loads, so that it starts sooner (once) ...", flush=True)
    written = archive.with_suffix(f".{os.getpid()}")  # another run may be at it too
    server = StockPulsar(version, archive=f"-XX:ArchiveClassesAtExit={written}")
    try:
        server.start().stop(timeout=_END_SECONDS)
        written.rename(archive)
        note.write_text(made_by, encoding="utf-8")
    except (StartError, OSError) as error:
        print(f"tests on Apache Pulsar {version} take longer, because it has no archive of classes: {error}", flush=True)


if __name__ == "__main__":
    make_all()
