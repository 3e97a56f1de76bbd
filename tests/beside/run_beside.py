"""Run transactions of two clusters under faults, and judge what came of them: `python tests/beside/run_beside.py --seed 7`.

Without `--seed` one is drawn, and printed. Ends with 1, and the command to run it again, when anything is not as promised.
About `--transactions` are committed; `--seconds` bounds the time with faults; `--rounds` goes on with the seeds after it.
`--services 2`: two coordinators that know nothing of each other; the log of one is put back to an older copy.
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
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / folder) for folder in ("support", "history", "chain"))]

from beside_plan import Plan, draw  # noqa: E402 - the path comes first
from beside_run import FaultRun, RunError  # noqa: E402
from chain_judge import ends_of_transactions  # noqa: E402
from check_history import judge  # noqa: E402
from history_reader import read_history  # noqa: E402
from history_verdict import VALID  # noqa: E402
from real_clusters import WEST_VERSION, RealClusters  # noqa: E402
from stock_cluster import StockCluster  # noqa: E402
from stock_pulsar import StockPulsar  # noqa: E402


def run(plan: Plan, clusters: RealClusters, folder: Path, **options: Any) -> list[str]:
    """What is wrong; empty when nothing is. Prints the numbers. `options` are those of FaultRun."""
    begin = time.monotonic()
    fault_run = FaultRun(plan, clusters, folder, **options)
    wrong: list[str] = []
    try:
        fault_run.run()
    except RunError as error:
        wrong.append(str(error))
    finally:
        clusters.all_up()
    history = read_history(fault_run.history)
    wrong += [str(verdict) for verdict in judge(history) if verdict.status != VALID]
    seen = {(op.process, op.value["topic"], tuple(op.value["position"])) for op in history.ops if op.f == "deliver"}
    left = [place for place in seen if place[0].startswith("rest-")]
    wrong += [f"{len(left)} inputs are left on a subscription, for example {left[0]}"] if left else []
    print(
        f"seed {plan.seed}: {2 * plan.inputs} inputs, {ends_of_transactions(history)}, faults {dict(fault_run.inflicted)} in "
        f"{fault_run.faulty_seconds:.0f} s, then {fault_run.drained_seconds:.1f} s to the end; {len(history)} operations, "
        f"{time.monotonic() - begin:.0f} s in all: {'WRONG' if wrong else 'none lost, doubled or torn'}",
        flush=True,
    )
    return wrong


def one(seed: int, arguments: argparse.Namespace, clusters: RealClusters) -> bool:
    """One seed; whether everything was right. The folder is kept when something is wrong."""
    folder = (arguments.folder or Path(tempfile.mkdtemp(prefix="beside-"))) / str(seed)
    options = f"--transactions {arguments.transactions} --workers {arguments.workers} --seconds {arguments.seconds:g}"
    options += f" --instances {arguments.instances} --services {arguments.services}"
    command = f"python tests/beside/run_beside.py --seed {seed} {options}"
    plan = draw(seed, arguments.transactions, arguments.workers)
    kinds = {"instances": arguments.instances, "services": arguments.services}
    wrong = run(plan, clusters, folder, seconds=arguments.seconds, command=command, **kinds)
    for line in wrong:
        print(f"seed {seed}: {line}", flush=True)
    if wrong:
        print(f"seed {seed}: FAILED; everything is in {folder}; again: {command}", flush=True)
    elif arguments.folder is None:
        shutil.rmtree(folder.parent)
    return not wrong


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--transactions", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--instances", type=int, default=1, help="several have their log in topics of a cluster")
    parser.add_argument(
        "--services", type=int, default=1, help="several have nothing in common; the last one loses a part of its log"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the histories go; kept then")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None, clusters: RealClusters | None = None) -> int:
    """The program; returns its exit status. `clusters`: running ones, else own ones are started."""
    arguments = parse(given)
    if clusters is None:
        with StockCluster() as east, StockPulsar(WEST_VERSION) as west:
            print(f"the cluster started in {east.start_seconds:.1f} s", flush=True)
            return main(given, RealClusters(east, west))
    first = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    failed = [seed for seed in range(first, first + arguments.rounds) if not one(seed, arguments, clusters)]
    print(f"{arguments.rounds} runs, failed: {failed or 'none'}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
