"""`python -m pulsar_txn.pipeline.functions localrun …`, and the process of an instance."""

import asyncio
import logging
import signal
import sys

from pulsar_txn.pipeline.functions._command import main, stand_in_for_pulsar


def instance() -> int:
    """One instance of a worker; see `worker.instance`."""
    from pulsar_txn.pipeline.functions.worker.instance import main as run_instance

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the worker ends its instances
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stand_in_for_pulsar()
    return asyncio.run(run_instance())


if __name__ == "__main__":
    sys.exit(main())
