"""Run the black-box chain: `python tests/chain/run_chain.py --seed 7 --seconds 40`.

Without `--seed` one is drawn, and printed. Ends with 1, and the command to run it again, when anything is not as promised.
`--python` names the interpreter of another environment, whose broker and client are run instead; `--stock VERSION` takes
a stock server, which is not killed; `--rounds` goes on with the seeds after the first; `--minutes` goes on for so long.
`--clients ours java go`: the official clients of Java and Go work beside ours; without `ours`, in its place. Beside a stock
server they need `--unbatched`: a batch that is pending as a whole can be acknowledged again there by another client, and both
commit (`docs/guarantees.md`). Our client refuses that itself, but not for others.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parent / "history")]

from chain_backlog import backlogs, left_open  # noqa: E402 - the path comes first
from chain_judge import compare, ends_of_transactions, refused  # noqa: E402
from chain_run import ChainError, PhaseRun, Server, as_text  # noqa: E402
from chain_schedule import CLIENTS, MODES, OURS, Phase, draw  # noqa: E402
from check_history import judge  # noqa: E402
from history_reader import read_history  # noqa: E402
from history_verdict import VALID  # noqa: E402
from other_languages import go_program, java_program  # noqa: E402
from our_broker import OurBroker  # noqa: E402
from stock_install import VERSIONS  # noqa: E402
from stock_pulsar import StockPulsar  # noqa: E402

JAVA_WORKER: Final = HERE / "ChainWorker.java"
GO_WORKER: Final = HERE / "go_worker"
CHECK_INTERVAL: Final = "4"
"""Seconds from one question about a transaction to the next: an open one of a killed worker ends with the second."""


def run(seed: int, arguments: argparse.Namespace, folder: Path) -> bool:
    """All phases of one seed; whether everything was right."""
    options = {"phases": arguments.phases, "modes": arguments.modes, "clients": arguments.clients}
    options["batches"] = not arguments.unbatched
    phases = draw(seed, arguments.seconds, **options, fences=not arguments.stock)
    right = True
    for phase in phases:
        begin = time.monotonic()
        verdicts = _phase(seed, phase, arguments, folder / phase.name)
        right = right and not verdicts
        for line in verdicts:
            print(f"seed {seed}, phase {phase.name}: {line}", flush=True)
        print(f"seed {seed}, phase {phase.name}: {time.monotonic() - begin:.1f} s", flush=True)
    return right


def _phase(seed: int, phase: Phase, arguments: argparse.Namespace, folder: Path) -> list[str]:
    """What is wrong; empty when nothing is."""
    server = _server(phase, arguments, folder)
    about = {"seed": seed, "command": _command(seed, arguments), "python": arguments.python}
    run = PhaseRun(phase, server, folder, **about, programs=_programs(seed, arguments))
    wrong: list[str] = []
    try:
        server.start()
        run.run()
        if isinstance(server, OurBroker):
            wrong += backlogs(server.admin_url, phase)
            wrong += left_open(server.admin_url)
    except ChainError as error:
        wrong.append(str(error))
    finally:
        server.stop()
    history = read_history(run.history)
    wrong += [str(verdict) for verdict in judge(history) if verdict.status != VALID]
    comparison = compare(phase, history)
    counts = {**ends_of_transactions(history), "refused to predecessors": refused(history)}
    told = f"{as_text(run.counts)} {counts}"
    if run.counts.replaced + run.counts.paused and not counts["refused to predecessors"]:
        wrong.append("workers had successors, and nothing was refused to them")
    if not run.is_read:
        print(f"seed {seed}, phase {phase.name}: not compared, for the final reads are missing; {told}", flush=True)
        return wrong
    print(f"seed {seed}, phase {phase.name}: {comparison}; {told}", flush=True)
    if not comparison.is_right:
        wrong.append(str(comparison))
    return wrong


def _command(seed: int, arguments: argparse.Namespace) -> str:
    asked = {"phases": arguments.phases, "modes": arguments.modes, "clients": arguments.clients}
    options = " ".join(f"--{name} {' '.join(values)}" for name, values in asked.items())
    more = " --unbatched" if arguments.unbatched else ""
    return f"python tests/chain/run_chain.py --seed {seed} --seconds {arguments.seconds:g} {options}{more}"


def _programs(seed: int, arguments: argparse.Namespace) -> dict[str, list[str]]:
    """How workers of other languages are started. Seeds take turns among the versions of the Java client."""
    made = {
        "java": lambda: java_program(JAVA_WORKER, VERSIONS[seed % len(VERSIONS)]),
        "go": lambda: [str(go_program(GO_WORKER))],
    }
    return {name: make() for name, make in made.items() if name in arguments.clients}


def _server(phase: Phase, arguments: argparse.Namespace, folder: Path) -> Server:
    data = folder / "data"
    folder.mkdir(parents=True)
    if arguments.stock:
        data.mkdir()
        return StockPulsar(arguments.stock, data_dir=data)
    conf = {"brokerDeduplicationEnabled": str(phase.deduplication).lower(), "transactionCheckIntervalInSeconds": CHECK_INTERVAL}
    return OurBroker(data_dir=data, conf=conf, python=arguments.python)


def main(given: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, default=40.0, help="with faults, of all phases together")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--phases", nargs="+", default=["calm", "kills"])
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--clients", nargs="+", default=[OURS], choices=CLIENTS)
    parser.add_argument("--unbatched", action="store_true", help="no chain has batched input")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--stock", default="")
    parser.add_argument("--folder", type=Path, help="where the histories go; kept then")
    arguments = parser.parse_args(given)
    first = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    until = time.monotonic() + arguments.minutes * 60
    failed = []
    seed = first
    while seed < first + arguments.rounds or time.monotonic() < until:
        folder = (arguments.folder or Path(tempfile.mkdtemp(prefix="chain-"))) / str(seed)
        if run(seed, arguments, folder):
            if arguments.folder is None:
                shutil.rmtree(folder.parent)
        else:
            failed.append(seed)
            print(
                f"seed {seed}: FAILED; everything is in {folder}; again: --seed {seed} --seconds {arguments.seconds:g}",
                flush=True,
            )
        seed += 1
    print(f"{seed - first} runs, failed: {failed or 'none'}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
