"""One run: the processes of each phase, its faults, the end of its work, and the folder with its history."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import attrs
from chain_beats import OPEN, REFUSED
from chain_schedule import OURS, Fault, Phase, Worker
from chain_zombies import Zombie
from history_format import HistoryWriter

HERE: Final = Path(__file__).resolve().parent
MODULES: Final = os.pathsep.join([str(HERE), str(HERE.parent / "history")])
DRAIN_SECONDS: Final = 60.0
"""After the last fault everything has to come through within this time, and the time in which it came in: on a machine that
other tests keep busy as well. What waits for nothing comes through in a few seconds."""
END_SECONDS: Final = 40.0
"""A worker that is asked to end does so within its client's operation timeout, and some."""
ENDED: Final = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
"""How processes end that are asked to; the signal itself ends one that has just begun, and the last of these is Java's word."""
CHECKS: Final = tuple(f"K{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15))
CHECKS_OF_TAKE_OVERS: Final = ("K10", "K18")
TAKE_OVERS: Final = ("replace-worker", "pause-worker")
BOUNDS: Final = {"txn_decided_ms": 6000, "unseen_ms": 60_000, "answer_ms": 30_000}


class Server(Protocol):
    """A broker that can be killed."""

    @property
    def service_url(self) -> str:
        """`pulsar://host:port`."""
        ...

    def start(self) -> object:
        """Start it, and return when it answers."""
        ...

    def stop(self) -> None:
        """End it."""
        ...

    def kill(self) -> None:
        """SIGKILL; it may be started again on the same folder and ports."""
        ...


class ChainError(Exception):
    """The run itself did not go as it has to: a process crashed or hangs, or the work does not come to its end."""


@attrs.define
class Counts:
    """What was done to the processes of a phase, and how long it took: seconds."""

    broker_kills: int = 0
    worker_kills: int = 0
    worker_closes: int = 0
    replaced: int = 0
    paused: int = 0
    complete: int = 0
    drained_after: float = 0.0
    slowest_start: float = 0.0


class PhaseRun:
    """Runs one phase into a folder. `python`: the interpreter of the processes; the environment that is under test.

    `programs`: the commands of workers with the official clients of other languages.
    """

    def __init__(
        self,
        phase: Phase,
        server: Server,
        folder: Path,
        *,
        seed: int,
        command: str,
        python: str,
        programs: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.counts = Counts()
        self.is_read = False
        """Whether the final reads have come to their end."""
        self._phase = phase
        self._server = server
        self._folder = folder
        self._python = python
        self._programs = programs or {}
        self._history = folder / "history"
        self._history.mkdir(parents=True)
        self._phase_file = folder / "phase.json"
        self._phase_file.write_text(phase.as_json(), encoding="utf-8")
        self._incarnations = dict.fromkeys((worker.name for worker in phase.workers), 0)
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._others: list[subprocess.Popen[bytes]] = []
        self._zombies: list[Zombie] = []
        self._nemesis = HistoryWriter(self._history, "nemesis")
        hops = [{"from": [hop.source], "to": [hop.target]} for chain in phase.chains for hop in chain.hops]
        checks = CHECKS + (CHECKS_OF_TAKE_OVERS if any(fault.what in TAKE_OVERS for fault in phase.faults) else ())
        about = {"seed": seed, "command": command, "checks": checks, "bounds": BOUNDS, "hops": hops}
        self._nemesis.event("meta", **about, prepared_end=True)  # by the check group of all workers

    @property
    def history(self) -> Path:
        """The folder of the history."""
        return self._history

    def run(self) -> None:
        """Everything, on a broker that is running. Raises ChainError. All processes have ended then."""
        try:
            self._run()
        finally:
            for process in [*self._workers.values(), *self._others, *(zombie.process for zombie in self._zombies)]:
                if process.poll() is None:
                    process.kill()
                    process.wait(15)
            self._nemesis.close()

    def _run(self) -> None:
        follower = self._start("chain_official.py", "follow")
        for worker in self._phase.workers:
            self._start_worker(worker)
        source = self._start("chain_source.py")
        begin = time.monotonic()
        for fault in self._phase.faults:
            self._wait(lambda: None, max(0.0, begin + fault.at - time.monotonic()))
            self._inflict(fault)
        self._wait(lambda: None if self._zombies else 0, DRAIN_SECONDS)
        self._wait(lambda: source.poll(), begin + self._phase.seconds + DRAIN_SECONDS - time.monotonic())
        if source.poll() != 0:
            raise ChainError(f"the source did not end well: {source.poll()}\n{self._log_tail('chain_source.py')}")
        self._nemesis.event("heal")
        healed = time.monotonic()
        whole = len(self._phase.chains)
        self._wait(lambda: self._completed() == whole or None, self._phase.seconds + DRAIN_SECONDS)
        self.counts.drained_after = time.monotonic() - healed
        self.counts.complete = self._completed()
        self._end_workers()
        self._end(follower, "the follower")
        final = self._start("chain_official.py", "final")
        if self._wait(lambda: final.poll(), DRAIN_SECONDS) != 0:
            raise ChainError(f"the final reads did not end well: {final.poll()}\n{self._log_tail('chain_official.py-final')}")
        self.is_read = True

    # --- faults -----------------------------------------------------------------------------------------------------

    def _inflict(self, fault: Fault) -> None:
        if fault.what == "kill-broker":
            self._nemesis.event("kill", target="broker", how="SIGKILL")
            self._server.kill()
            before = time.monotonic()
            self._server.start()
            self.counts.slowest_start = max(self.counts.slowest_start, time.monotonic() - before)
            self.counts.broker_kills += 1
            return
        worker = next(each for each in self._phase.workers if each.name == fault.target)
        if fault.what in TAKE_OVERS:
            self._replace(worker, slept=fault.what == "pause-worker")
            return
        hard = fault.what == "kill-worker"
        self._end_worker(self._workers[worker.name], [worker.name, *self._processes_of(worker)], hard=hard)
        if hard:
            self.counts.worker_kills += 1
        else:
            self.counts.worker_closes += 1
        self._start_worker(worker)

    def _end_worker(self, process: subprocess.Popen[bytes], names: Sequence[str], *, hard: bool) -> None:
        """`names`: those under which it writes its history come last, and the first one of these is its loop's."""
        for target in names:
            self._nemesis.event("kill", target=target, how="SIGKILL" if hard else "SIGTERM")
        if hard:
            process.kill()
            process.wait(15)
        else:
            self._end(process, f"worker {names[0]}")

    def _replace(self, worker: Worker, *, slept: bool) -> None:
        """Start a successor of a worker that lives on, when that has taken its ids over: else it may be the newer one."""
        names, number = self._processes_of(worker), self._incarnations[worker.name]
        if self._wait(lambda: self._is_open(worker, number - 1) or None, DRAIN_SECONDS) is None:
            raise ChainError(f"{names[0]} never took its transactional ids over; see the logs in {self._folder}")
        if slept:
            for target in names:
                self._nemesis.event("pause", target=target)
            self.counts.paused += 1
        else:
            self.counts.replaced += 1

        def end(zombie: Zombie) -> None:
            self._end_worker(zombie.process, names, hard=slept)
            if not zombie.in_time:
                raise ChainError(f"{names[0]} has a successor, and was never refused; see the logs in {self._folder}")

        def succeeded() -> bool:
            return any(self._is_open(worker, each) for each in range(number, self._incarnations[worker.name]))

        zombie = Zombie(
            names[0],
            self._workers[worker.name],
            slept=slept,
            succeeded=succeeded,
            refused=lambda: REFUSED in self._text(names[0]),
            end=end,
        )
        self._zombies.append(zombie)
        self._start_worker(worker)

    def _is_open(self, worker: Worker, number: int) -> bool:
        """Whether an incarnation has taken all its ids over: its loop has one, and each thread."""
        return self._text(f"{worker.name}.{number}").count(OPEN) == 1 + worker.styles.count("sync")

    def _processes_of(self, worker: Worker) -> list[str]:
        """The names under which the present incarnation of a worker writes its history: its loop, and a thread per hop."""
        name = f"{worker.name}.{self._incarnations[worker.name] - 1}"
        hops = {hop.source[-1] for chain in self._phase.chains for hop in chain.hops}
        return [name, *(f"{name}-{hop}" for hop in sorted(hops))]

    def _end_workers(self) -> None:
        for process in self._workers.values():
            process.send_signal(signal.SIGTERM)
        workers, self._workers = self._workers, {}
        self._others += workers.values()
        for name, process in workers.items():
            self._join(process, f"worker {name}")

    def _end(self, process: subprocess.Popen[bytes], what: str) -> None:
        process.send_signal(signal.SIGTERM)
        self._join(process, what)

    def _join(self, process: subprocess.Popen[bytes], what: str) -> None:
        """Wait for a process that was asked to end; one that does not is a fault, and shows where it is in its log."""
        try:
            status = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)  # it writes its stacks
            raise ChainError(f"{what} hangs: it did not end within {END_SECONDS:g} s; see the logs in {self._folder}") from None
        if status not in ENDED:
            raise ChainError(f"{what} ended with {status}; see the logs in {self._folder}")

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start_worker(self, worker: Worker) -> None:
        number = self._incarnations[worker.name]
        self._incarnations[worker.name] += 1
        program = self._program("chain_worker.py") if worker.client == OURS else self._programs[worker.client]
        arguments = [str(self._phase_file), worker.name, str(number)]
        self._workers[worker.name] = self._spawn(f"{worker.name}.{number}", [*program, *arguments])

    def _start(self, program: str, *verbs: str) -> subprocess.Popen[bytes]:
        name = "-".join([program, *verbs])
        process = self._spawn(name, [*self._program(program), *verbs, str(self._phase_file)])
        self._others.append(process)
        return process

    def _program(self, file: str) -> list[str]:
        return [self._python, str(HERE / file)]

    def _spawn(self, name: str, program: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [*program, str(self._history), self._server.service_url]
        with self._log(name).open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": MODULES})

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _text(self, name: str) -> str:
        log = self._log(name)
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def _log_tail(self, name: str) -> str:
        return self._text(name)[-3000:]

    def _completed(self) -> int:
        return self._text("chain_official.py-follow").count("complete ")

    def _wait(self, done: Callable[[], int | None], seconds: float) -> int | None:
        """Until `done()` is not None, or for so long; ChainError when a worker has crashed meanwhile."""
        until = time.monotonic() + seconds
        while (found := done()) is None and time.monotonic() < until:
            for name, process in self._workers.items():
                if process.poll() not in (None, *ENDED):
                    raise ChainError(f"worker {name} crashed:\n{self._log_tail(f'{name}.{self._incarnations[name] - 1}')}")
            for zombie in self._zombies:
                if zombie.process.poll() not in (None, 0):
                    raise ChainError(f"worker {zombie.name} crashed:\n{self._log_tail(zombie.name)}")
            self._zombies = [zombie for zombie in self._zombies if not zombie.step()]
            time.sleep(0.05)
        return found


def as_text(counts: Counts) -> str:
    """One line."""
    return json.dumps(attrs.asdict(counts))
