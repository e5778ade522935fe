"""Work larger than one process: inputs in shards, with a ledger of what is done; sweeps; their executors."""
