"""Programs of the tests in Java and Go, with the official clients: compiled once, and kept beside the fetched servers.

The name of what is kept has a digest of its source, so that a change makes it anew.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from stock_install import built_beside, cache_dir, install, java_says, locked, missing_tools
from targets import lacking

_JAVA: Final = ("-Dfile.encoding=UTF-8", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms32m", "-Xmx128m")
_COMPILER: Final = ("-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none", "-XDignore.symbol.file")
OLDEST_GO: Final = (1, 21)
"""Since then `go` fetches by itself the Go that a module asks for, as a module."""


def java_program(source: Path, version: str) -> list[str]:
    """The command that runs the class of a source file with the client of a version of Pulsar."""
    if (reason := missing_tools()) is not None:
        lacking("pulsar", reason)
    home = install(version)
    made = _kept("java", [source.read_bytes(), str(home).encode(), java_says().encode()])
    with locked(cache_dir()):
        if not made.is_dir():
            with built_beside(made) as scratch:
                jars = os.pathsep.join(map(str, sorted((home / "lib").glob("*.jar"))))
                _run(["java", *_JAVA, *_COMPILER, "-cp", jars, "-d", str(scratch / "classes"), str(source)])
                (scratch / "classes").rename(made)
    return ["java", *_JAVA, "-cp", f"{made}:{home}/lib/*", source.stem]


def go_program(folder: Path) -> Path:
    """The program of a Go module."""
    go = shutil.which("go")
    if go is None or _go_version(go) < OLDEST_GO:
        oldest = ".".join(map(str, OLDEST_GO))
        lacking("go", f"there is no Go {oldest} or newer on the PATH; see https://go.dev/doc/install")
    sources = [folder / name for name in ("go.mod", "go.sum", "main.go")]
    made = _kept("go", [each.read_bytes() for each in sources])
    with locked(cache_dir()):
        if not made.exists():
            with built_beside(made) as scratch:
                # Without cgo there is no C compiler in it, and half of the work.
                _run([go, "build", "-buildvcs=false", "-o", str(scratch / "program"), "."], folder, {"CGO_ENABLED": "0"})
                (scratch / "program").rename(made)
    return made


def _kept(kind: str, contents: Iterable[bytes]) -> Path:
    digest = hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]
    return cache_dir().resolve() / f"{kind}-{digest}"


def _go_version(go: str) -> tuple[int, int]:
    said = subprocess.run([go, "version"], capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _run(command: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | dict(environment or {}), capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
