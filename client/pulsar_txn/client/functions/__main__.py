"""`python -m pulsar_txn.client.functions localrun …`."""

import sys

from pulsar_txn.client.functions._command import main

if __name__ == "__main__":
    sys.exit(main())
