"""The front for unchanged clients: their service URL. It answers what concerns transactions, and passes on everything else."""
