"""`python -m pulsar_txn.pipeline.functions localrun …`."""

import sys

from pulsar_txn.pipeline.functions._command import main

if __name__ == "__main__":
    sys.exit(main())
