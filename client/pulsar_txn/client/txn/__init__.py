"""The room of transactions: their coordinators, registration, ending, and the managed block."""
