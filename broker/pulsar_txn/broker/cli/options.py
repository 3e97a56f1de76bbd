"""Options of a server's command, and its configuration with them on top."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from .exits import USAGE, Ending

LoadedT = TypeVar("LoadedT")


def command_line_of(settings: tuple[str, ...], port: int | None = None, http_port: int | None = None) -> dict[str, str]:
    """Settings of the command line, by key. Raises click.BadParameter for something that is not KEY=VALUE."""
    chosen: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter("write KEY=VALUE; what was given has no '='", param_hint="--set")  # never shown: a secret?
        chosen[key] = value
    if port is not None:
        chosen["brokerServicePort"] = str(port)
    if http_port is not None:
        chosen["webServicePort"] = str(http_port)
    return chosen


def load_config(
    load: Callable[[Path | None, Mapping[str, str], Mapping[str, str]], LoadedT],
    conf: Path | None,
    command_line: Mapping[str, str],
) -> LoadedT:
    """Load the configuration from the file, the environment and the options. Raises as `load`, and Ending for the file."""
    try:
        return load(conf, os.environ, command_line)
    except OSError as error:
        raise Ending(USAGE, f"{conf} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Ending(USAGE, f"{conf} is not a text in UTF-8: {error}") from error
