"""Where a stock Apache Pulsar to test against comes from: Maven artifacts, unpacked once into one cache folder.

The 4.0 line has a complete tarball. The 4.2 line has jars only: its server is those jars with the scripts and the
configuration of the tarball beside them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pulsar_txn.pipeline.java import version_in

TARBALL_VERSION: Final = "4.0.8"
JAR_VERSIONS: Final = ("4.2.4",)
VERSIONS: Final = (TARBALL_VERSION, *JAR_VERSIONS)

DEPENDENCY_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_CHECKOUT: Final = Path(__file__).resolve().parents[2]

# Importing Pulsar's parent pom supplies the versions of log4j, which the broker's jar does not depend on at run time.
_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>stock</groupId><artifactId>stock-pulsar</artifactId><version>1</version>
  <dependencyManagement><dependencies><dependency>
    <groupId>org.apache.pulsar</groupId><artifactId>pulsar</artifactId><version>{version}</version>
    <type>pom</type><scope>import</scope>
  </dependency></dependencies></dependencyManagement>
  <dependencies>
    <dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j2-impl</artifactId></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId></dependency>
  </dependencies>
</project>
"""


class InstallError(Exception):
    """This machine cannot fetch or run a stock Pulsar; the message says what it lacks."""


def cache_dir() -> Path:
    """The folder that holds unpacked servers: PULSAR_TXN_CACHE, or `.cache/stock-pulsar` in the checkout."""
    return Path(os.environ.get("PULSAR_TXN_CACHE") or _CHECKOUT / ".cache" / "stock-pulsar")


def class_archive(version: str) -> Path:
    """Where the archive is of the classes that a server of `version` loads; `class_archives` makes it, or it is missing."""
    return cache_dir().resolve() / f"classes-{version}.jsa"


def archive_option(version: str) -> str:
    """The option with which a server's Java takes its classes from `class_archive(version)`; empty while that is missing."""
    archive = class_archive(version)
    return f"-XX:SharedArchiveFile={archive}" if archive.exists() else ""


def missing_tools() -> str | None:
    """A sentence naming what this machine lacks to fetch and run a stock Pulsar, or None."""
    missing = [name for name, here in (("Java 17 or newer", _java_version() >= 17), ("Maven", shutil.which("mvn"))) if not here]
    return f"a stock Pulsar needs {' and '.join(missing)} on this machine" if missing else None


def _java_version() -> int:
    return version_in(java_says())


def java_says() -> str:
    """What `java -version` says, of JAVA_HOME or of the PATH; empty without a Java."""
    java = shutil.which("java", path=os.environ["JAVA_HOME"] + "/bin" if os.environ.get("JAVA_HOME") else None)
    if java is None:
        return ""
    return subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr


def install(version: str) -> Path:
    """The home folder (bin, conf, lib) of `version`; the first call fetches it, which takes some seconds.

    Safe to call from several processes at once. Raises InstallError when a tool or the artifact is missing.
    """
    if version not in VERSIONS:
        raise InstallError(f"Pulsar {version} is not known to be in Maven's repository; known: {', '.join(VERSIONS)}")
    home = cache_dir() / f"apache-pulsar-{version}"
    if home.is_dir():
        return home
    if reason := missing_tools():
        raise InstallError(reason)
    with locked(cache_dir()):
        if not home.is_dir():
            _install_tarball(home) if version == TARBALL_VERSION else _install_jars(version, home)
    return home


def _install_tarball(home: Path) -> None:
    name = f"pulsar-server-distribution-{TARBALL_VERSION}-bin.tar.gz"
    with built_beside(home) as scratch:
        artifact = f"org.apache.pulsar:pulsar-server-distribution:{TARBALL_VERSION}:tar.gz:bin"
        maven(f"{DEPENDENCY_PLUGIN}:get", f"-Dartifact={artifact}", "-Dtransitive=false", cwd=scratch)
        maven(
            f"{DEPENDENCY_PLUGIN}:copy",
            f"-Dartifact={artifact}",
            f"-DoutputDirectory={scratch}",
            "-Dmdep.overWriteReleases=true",
            cwd=scratch,
        )
        with tarfile.open(scratch / name) as archive:
            archive.extractall(scratch, filter="data")
        (scratch / f"apache-pulsar-{TARBALL_VERSION}").rename(home)


def _install_jars(version: str, home: Path) -> None:
    scripts = cache_dir() / f"apache-pulsar-{TARBALL_VERSION}"
    if not scripts.is_dir():
        _install_tarball(scripts)
    with built_beside(home) as scratch:
        (scratch / "pom.xml").write_text(_POM.format(version=version), encoding="utf-8")
        built = scratch / "home"
        maven(
            f"{DEPENDENCY_PLUGIN}:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={built / 'lib'}",
            cwd=scratch,
        )
        for folder in ("bin", "conf"):
            shutil.copytree(scripts / folder, built / folder)
        built.rename(home)


def maven(*arguments: str, cwd: Path) -> None:
    """Run Maven; InstallError with the end of what it says."""
    done = subprocess.run(["mvn", "-q", "-B", *arguments], cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise InstallError(f"mvn {arguments[0]} failed:\n{(done.stdout + done.stderr)[-2000:]}")


@contextmanager
def built_beside(home: Path) -> Iterator[Path]:
    """A scratch folder on the file system of `home`, so that the finished folder is renamed into place or not there at all."""
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".fetch-") as scratch:
        yield Path(scratch)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time fetches into this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _main() -> None:
    """Fetch all known versions, telling what takes its time; a machine that cannot is told so, and that is no error."""
    wanted = {version: home for version in VERSIONS if not (home := cache_dir() / f"apache-pulsar-{version}").is_dir()}
    if wanted and (reason := missing_tools()):
        print(f"tests on stock Pulsar cannot run here: {reason}", flush=True)
        return
    for version, home in wanted.items():
        print(f"fetching Apache Pulsar {version} with Maven into {home} (once; about 250 MB) ...", flush=True)
        try:
            install(version)
        except InstallError as error:
            print(f"tests on stock Pulsar {version} cannot run here: {error}", flush=True)


if __name__ == "__main__":
    _main()
