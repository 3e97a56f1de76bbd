"""Check the import contracts of pyproject.toml: `python tests/house/contracts.py`, with the options of `lint-imports`.

import-linter takes rooms of a namespace package only. `pulsar_txn` has an `__init__.py` for its two classes, which imports no
room before it is asked for them; here it counts as the namespace that it is otherwise.
"""

from __future__ import annotations

import sys

from importlinter.cli import lint_imports_command

import pulsar_txn

if __name__ == "__main__":
    assert pulsar_txn.__spec__ is not None
    pulsar_txn.__spec__.has_location = False
    sys.exit(lint_imports_command())
