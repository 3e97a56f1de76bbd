"""Our coordinator beside stock Pulsar's own, on the same cluster, in turns.

    make bench BENCH=bench/beside                     4.2.4 and 4.0.8, under four minutes; writes bench/beside/RESULTS.md
    make bench BENCH=bench/beside ARGS=--quick        one short round on 4.2.4; writes nothing
    make bench BENCH=bench/beside ARGS="--stock 4.2.4 --rounds 9 --java-rounds 0"
    make bench BENCH=bench/beside ARGS="--from FILE"  the page anew, from the figures of a run (`--keep FILE`)

Exit code 1 when something failed; a goal that is not met is said in the table.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "tests" / "support")]

import rounds  # noqa: E402 - beside this file, and the fixtures of the tests
import table  # noqa: E402

VERSIONS = ("4.2.4", "4.0.8")


def parse() -> Any:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="bench/beside", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round on one version; writes no page")
    parser.add_argument("--stock", nargs="+", default=VERSIONS, metavar="VERSION", help="on clusters of these versions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--java-rounds", type=int, default=1, help="rounds in which the Java client takes part (default 1)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each turn")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write all figures there, as JSON")
    parser.add_argument("--from", type=Path, dest="kept", metavar="FILE", help="measure nothing; the page of these figures")
    parser.add_argument("--write", type=Path, help="where the page goes (bench/beside/RESULTS.md for a whole run)")
    options = parser.parse_args()
    if options.quick:
        options.stock, options.rounds, options.java_rounds, options.seconds = options.stock[:1], 1, 0, 0.7
    if options.write is None and not options.quick and (options.kept or tuple(options.stock) == VERSIONS):
        options.write = HERE / "RESULTS.md"
    return options


def measure(options: Any) -> dict[str, Any]:
    """All figures of a run, as they are kept."""
    began = time.perf_counter()
    found = {}
    with tempfile.TemporaryDirectory(prefix="bench-beside-") as folder:
        for version in options.stock:
            results = rounds.run(version, options.rounds, options.java_rounds, options.seconds, Path(folder))
            found[version] = [[*key, each] for key, each in results.items()]
    took = time.perf_counter() - began
    return {"found": found, "rounds": options.rounds, "seconds": options.seconds, "took": took}


def main() -> int:
    """Measure, print the page, write it where it belongs."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with it
    kept = json.loads(options.kept.read_text(encoding="utf-8")) if options.kept else measure(options)
    if options.keep is not None:
        options.keep.write_text(json.dumps(kept), encoding="utf-8")
    found = {version: {(row, side): each for row, side, each in results} for version, results in kept["found"].items()}
    text = table.page(found, kept["rounds"], kept["seconds"], kept["took"])
    print("\n" + text)
    if options.write is not None:
        options.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
