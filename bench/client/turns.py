"""Drivers that are all there at once and take turns."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any, Self


class InTurns:
    """A few sends of one driver, then as many of the next, again and again.

    What the machine gives changes within seconds; so two clients are compared within one.
    """

    def __init__(self, commands: Mapping[str, list[str]]) -> None:
        self._drivers = {
            name: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for name, command in commands.items()
        }

    def run(self, turns: int, sends: int, warm: int) -> dict[str, dict[str, Any]]:
        """So many turns of so many sends each; `warm` turns before do not count. RuntimeError when a driver ends."""
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in self._drivers}
        names = list(self._drivers)
        for number in range(warm + turns):
            begins = number % len(names)
            for name in names[begins:] + names[:begins]:
                result = self._turn(name, sends)
                if number >= warm:
                    results[name].append(result)
        return {name: self._together(parts) for name, parts in results.items()}

    def _turn(self, name: str, sends: int) -> dict[str, Any]:
        driver = self._drivers[name]
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(f"{sends}\n")
        driver.stdin.flush()
        for line in driver.stdout:
            if line.startswith("{"):  # the official client logs there
                turn: dict[str, Any] = json.loads(line)
                return turn
        raise RuntimeError(f"{name} ended with {driver.wait()}")

    @staticmethod
    def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
        latencies = sorted(latency for part in parts for latency in part["latencies_ms"])
        sums = {key: sum(part[key] for part in parts) for key in ("count", "seconds", "cpu")}
        return {**sums, "latencies_ms": latencies}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self._drivers.values():
            if driver.stdin is not None:
                driver.stdin.close()  # its end
        for driver in self._drivers.values():
            driver.wait(timeout=30)
