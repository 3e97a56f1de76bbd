"""The state of a machine as its snapshot tells it, and a machine with such a state."""

from __future__ import annotations

from typing import Any, TypeVar

MachineT = TypeVar("MachineT", bound=Any)


def state_of(machine: Any) -> tuple[bytes, ...]:
    """All slices of a snapshot, to compare them with another's."""
    return tuple(machine.snapshot())


def restored(machine: MachineT, parts: tuple[bytes, ...]) -> MachineT:
    """A fresh machine after it took over the slices."""
    for part in parts:
        machine.restore(part)
    return machine
