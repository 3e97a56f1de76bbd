"""Source and sink of `format("pulsar")` beside Spark's own sources and sinks, on our broker, in one run.

    make bench BENCH=bench/spark                        all of it, about 4 minutes
    make bench BENCH=bench/spark ARGS=--quick           a tenth of the rows, to see that it works
    make bench BENCH=bench/spark ARGS="--only source --rounds 5"

Each gate is a ratio of two medians; in every round the two sides take turns. Exit code 1 when a gate is not met.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "tests" / "support")]

from gates import Gate, Place, started  # noqa: E402 - beside this file

SIDES = ["source", "sink"]


def main() -> int:
    """Run the chosen sides, print their gates."""
    parser = argparse.ArgumentParser(prog="bench/spark", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*SIDES, "ways"], default=SIDES, help="sides to measure")
    parser.add_argument("--server", choices=["ours", "stock"], default="ours", help="for `--only ways`")
    parser.add_argument("--rows", type=int, default=2_100_000, help="rows of about 100 bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one round")
    given = parser.parse_args()
    rows, rounds = (given.rows // 10, 1) if given.quick else (given.rows, given.rounds)
    gates: list[Gate] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-") as folder,
        started(Path(folder), given.server) as (spark, url, admin_url),
    ):
        place = Place(spark, url, admin_url, Path(folder), rows, rounds, is_ours=given.server == "ours")
        for name in given.only:
            for gate in importlib.import_module(f"{name}_side").gates(place):
                print(gate, flush=True)
                gates.append(gate)
    missed = [gate for gate in gates if not gate.is_met]
    print(f"{len(gates) - len(missed)} of {len(gates)} gates met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
