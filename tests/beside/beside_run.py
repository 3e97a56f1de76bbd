"""One fault run: its processes, its faults, the end of its work, and the folder with its history."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from beside_plan import LEASE_SECONDS, STOPPED_SECONDS, TXN_SECONDS, Plan, faults
from history_format import HistoryWriter
from real_clusters import RealClusters
from stock_cluster import BOOKIES, BROKERS
from stock_pulsar import free_port

HERE: Final = Path(__file__).resolve().parent
MODULES: Final = os.pathsep.join(str(HERE.parent / folder) for folder in ("beside", "history", "chain", "support"))
CHECKS: Final = tuple(f"K{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15))
DECIDED_SECONDS: Final = 6.0
BOUNDS: Final = {"txn_decided_ms": int(DECIDED_SECONDS * 1000), "unseen_ms": 120_000, "answer_ms": 60_000}
HEALED_AT: Final = 0.85
"""No more faults once this share of the outputs is there."""
DRAIN_SECONDS: Final = 180.0
END_SECONDS: Final = 180.0
COPIED_AT, RESTORED_AT = 0.08, 0.3
"""With services: the shares of the outputs at which the log of one of them is copied, and at which the copy takes its place."""
STATS: Final = "/admin/v3/transactions/coordinatorStats"


class RunError(Exception):
    """The run itself did not go as it has to: a process crashed or hangs, or the work does not come to its end."""


class FaultRun:
    """Runs a plan into `folder`. `seconds`: so long there are faults at most.

    `instances`: 1 for a coordinator with its log in a folder, more for so many with their log in topics of a cluster.
    `services`: coordinators that know nothing of each other, each with a log in a folder of its own; workers are spread over
    them. With more than one, the log of the last is put back to an older copy before the faults begin.
    """

    def __init__(
        self,
        plan: Plan,
        clusters: RealClusters,
        folder: Path,
        *,
        command: str,
        seconds: float,
        instances: int = 1,
        services: int = 1,
    ) -> None:
        self.inflicted: Counter[str] = Counter()
        self.faulty_seconds = self.drained_seconds = 0.0
        self.history = folder / "history"
        conf = {"transactionClientLeaseInSeconds": str(LEASE_SECONDS)}
        self._services = services
        if instances == 1:
            ports = [free_port() for _ in range(services)]
            self._stats = [f"http://127.0.0.1:{port}{STATS}" for port in ports]
            self._coordinators = [clusters.coordinator(conf=conf | {"webServicePort": str(port)}) for port in ports]
        else:
            self._coordinators = clusters.instances(instances, conf=conf)
        self._plan = plan
        self._clusters = clusters
        self._folder = folder
        self._seconds = seconds
        self.history.mkdir(parents=True)
        self._nemesis = HistoryWriter(self.history, "nemesis")
        hops = [
            {"from": plan.topics[hop.source].noted, "to": plan.topics[target].noted}
            for hop in plan.hops
            for target in hop.targets
        ]
        self._nemesis.event("meta", seed=plan.seed, command=command, checks=CHECKS, bounds=BOUNDS, hops=hops, clients_end=True)
        self._incarnations: Counter[int] = Counter()
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._others: list[subprocess.Popen[bytes]] = []
        self._stopped: dict[int, float] = {}
        """Processes that sleep, and since when."""
        self._last_fault = time.monotonic()

    def run(self) -> None:
        """Everything. Raises RunError. All processes of the run have ended then, and all servers run."""
        try:
            with contextlib.ExitStack() as started:
                for each in self._coordinators:
                    started.enter_context(each)
                self._run_beside()
        finally:
            for process in [*self._workers.values(), *self._others]:
                if process.poll() is None:
                    process.kill()
                    process.wait(15)
            self._nemesis.close()

    def _run_beside(self) -> None:
        try:
            self._run()
        except RunError as error:
            logs = "\n".join(each.log_tail() for each in self._coordinators)
            raise RunError(f"{error}\n{logs}") from None

    def _run(self) -> None:
        self._write_files()
        for topic in self._plan.topics.values():
            self._clusters.create(topic.cluster, topic.name, topic.partitions)
        self._join(self._start("beside_official.py", "feed"), "feeding")
        follower = self._start("beside_official.py", "follow")
        self._wait(lambda: len(self._shown()) == len(self._plan.lasts), END_SECONDS)
        for number in range(self._plan.workers):
            self._start_worker(number)
        if self._services > 1:
            self._put_back_a_log()
        begin = time.monotonic()
        self._inflict_faults(begin + self._seconds)
        self._heal()
        healed = time.monotonic()
        self.faulty_seconds = healed - begin
        self._wait(lambda: self._share() >= 1.0, DRAIN_SECONDS)
        self.drained_seconds = time.monotonic() - healed
        if self._share() < 1.0:
            raise RunError(f"after {DRAIN_SECONDS:g} s without faults {self._shown()} of {self._plan.inputs} have come through")
        self._end_workers()
        # What a killed worker left open is decided by now, and the checkers know it.
        self._wait(lambda: False, self._last_fault + TXN_SECONDS + DECIDED_SECONDS - time.monotonic())
        follower.send_signal(signal.SIGTERM)
        self._join(follower, "the follower")
        self._join(self._start("beside_official.py", "final"), "the final reads")

    # --- an older log -------------------------------------------------------------------------------------------------

    def _put_back_a_log(self) -> None:
        """Copy the log of the last service, let transactions go on, and put the copy in its place.

        The workers have ended each time, and nothing is open: what a life that is lost has left open, nobody ends.
        """
        service = self._coordinators[-1]
        copy = self._folder / "copy"
        for at, source, target in ((COPIED_AT, service.data_dir, copy), (RESTORED_AT, copy, service.data_dir)):
            self._wait(lambda at=at: self._share() >= at, END_SECONDS)
            if self._share() < at:
                raise RunError(f"after {END_SECONDS:g} s {self._shown()} of {self._plan.inputs} have come through")
            self._end_workers()
            self._wait(lambda: not self._open_transactions(), END_SECONDS)
            if self._open_transactions():
                raise RunError(f"{self._open_transactions()} transactions stay open, and their clients have ended")
            service.kill()
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
            service.start()
            for number in range(self._plan.workers):
                self._start_worker(number)
        self.inflicted["log put back"] += 1

    def _open_transactions(self) -> int:
        return sum(_open_at(url) for url in self._stats)

    # --- faults -----------------------------------------------------------------------------------------------------

    def _inflict_faults(self, until: float) -> None:
        for pause, what, number in faults(self._plan.seed):
            self._wait(self._is_nearly_done, min(pause, until - time.monotonic()))
            if time.monotonic() > until or self._is_nearly_done():
                return
            self._wake(time.monotonic() - STOPPED_SECONDS)
            self._last_fault = time.monotonic()
            getattr(self, "_" + what.replace("-", "_"))(number)
            self.inflicted[what] += 1

    def _is_nearly_done(self) -> bool:
        return self._share() >= HEALED_AT

    def _kill_coordinator(self, number: int) -> None:
        self._note("coordinator")
        self._coordinators[number % len(self._coordinators)].restart(hard=True)

    def _stop_coordinator(self, number: int) -> None:
        self._note("coordinator")
        self._stop(self._coordinators[number % len(self._coordinators)].pids[0])

    def _kill_worker(self, number: int) -> None:
        worker = number % self._plan.workers
        self._note(self._name(worker))
        self._workers[worker].kill()
        self._workers[worker].wait(15)
        self._start_worker(worker)

    def _stop_worker(self, number: int) -> None:
        worker = number % self._plan.workers
        self._nemesis.event("pause", target=self._name(worker))
        self._stop(self._workers[worker].pid)

    def _stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._stopped.setdefault(pid, time.monotonic())

    def _wake(self, before: float) -> None:
        """Those that were stopped before a moment. They may have been killed since."""
        for pid, since in list(self._stopped.items()):
            if since <= before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                del self._stopped[pid]

    def _kill_broker(self, number: int) -> None:
        self._kill_server(BROKERS[number % len(BROKERS)])

    def _kill_bookie(self, number: int) -> None:
        self._kill_server(BOOKIES[number % len(BOOKIES)])

    def _kill_server(self, name: str) -> None:
        self._note(name)
        self._clusters.east_cluster.kill(name)
        self._clusters.east_cluster.up(name)

    def _kill_west(self, _: int) -> None:
        self._note("west")
        self._clusters.west_server.restart(hard=True)

    def _unload(self, number: int) -> None:
        cluster = self._clusters.east_cluster
        topics = [part for topic in self._plan.topics.values() if topic.cluster == "east" for part in topic.parts]
        try:
            cluster.unload(cluster.bundle(topics[number % len(topics)]), BROKERS[number // len(topics) % len(BROKERS)])
        except urllib.error.HTTPError as error:  # nobody serves it at the moment, or it is being moved
            self.inflicted[f"unload refused with {error.code}"] += 1

    def _note(self, target: str) -> None:
        self._nemesis.event("kill", target=target, how="SIGKILL")

    def _heal(self) -> None:
        self._wake(time.monotonic())
        self._clusters.all_up()
        self._nemesis.event("heal")

    # --- processes --------------------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        (self._folder / "plan.json").write_text(self._plan.as_json(), encoding="utf-8")
        urls = [each.service_url for each in self._coordinators]
        hosts = ",".join(url.removeprefix("pulsar://") for url in urls)
        coordinators = urls if self._services > 1 else [f"pulsar://{hosts}"]
        places = {"coordinators": coordinators, "clusters": self._clusters.places()}
        (self._folder / "places.json").write_text(json.dumps(places), encoding="utf-8")

    def _name(self, worker: int) -> str:
        return f"worker-{worker}.{self._incarnations[worker] - 1}"

    def _start_worker(self, worker: int) -> None:
        self._incarnations[worker] += 1
        arguments = [str(worker), str(self._incarnations[worker] - 1), str(self.history)]
        self._workers[worker] = self._spawn(self._name(worker), "beside_worker.py", *self._files(), *arguments)

    def _start(self, program: str, verb: str) -> subprocess.Popen[bytes]:
        process = self._spawn(verb, program, verb, *self._files(), str(self.history))
        self._others.append(process)
        return process

    def _files(self) -> list[str]:
        return [str(self._folder / "plan.json"), str(self._folder / "places.json")]

    def _spawn(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(HERE / program), *arguments]
        with self._log(name).open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": MODULES})

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _end_workers(self) -> None:
        workers, self._workers = self._workers, {}
        self._others += workers.values()
        for process in workers.values():
            process.send_signal(signal.SIGTERM)
        for number, process in workers.items():
            self._join(process, f"worker {number}")

    def _join(self, process: subprocess.Popen[bytes], what: str) -> None:
        try:
            status = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise RunError(f"{what} did not end within {END_SECONDS:g} s; see the logs in {self._folder}") from None
        if status not in (0, -signal.SIGTERM):  # which ends a process that has just begun
            raise RunError(f"{what} ended with {status}; see the logs in {self._folder}")

    # --- how far it is ------------------------------------------------------------------------------------------------

    def _shown(self) -> dict[str, int]:
        lines = self._log("follow").read_text(encoding="utf-8").splitlines()
        told = [line for line in lines if line.startswith("{")]
        found: dict[str, int] = json.loads(told[-1]) if told else {}
        return found

    def _share(self) -> float:
        """Of the outputs that are there, at the topic that has the fewest."""
        shown: dict[str, Any] = self._shown()
        return min(shown.get(topic.name, 0) for topic in self._plan.lasts) / self._plan.inputs

    def _wait(self, done: Callable[[], bool], seconds: float) -> None:
        """Until `done()`, or for so long; RunError when a worker has ended by itself meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not done():
            for number, process in self._workers.items():
                if process.poll() is not None:
                    raise RunError(f"worker {number} ended with {process.returncode}; see {self._log(self._name(number))}")
            time.sleep(0.2)


def _open_at(url: str) -> int:
    """How many transactions a service has that are open or ending."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return sum(each["ongoingTxnSize"] for each in json.load(answer).values())
