"""The script `pulsar-txn`. This module imports nothing that the bare install (the client) does not have."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

_NEEDED: Final = ("click", "javaproperties", "aiohttp", "prometheus_client")
_MISSING_EXTRA: Final = (
    "pulsar-txn: the command line and the broker come with an extra that is not installed ({missing}); "
    "run: pip install '.[broker]' in a checkout"
)
_UNAVAILABLE: Final = 69


def main() -> None:
    """Run the command line and exit; without the extra `broker`: one sentence and exit code 69."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        sys.stderr.write(_MISSING_EXTRA.format(missing=", ".join(missing)) + "\n")
        sys.exit(_UNAVAILABLE)
    from .group import group

    group(prog_name="pulsar-txn")
