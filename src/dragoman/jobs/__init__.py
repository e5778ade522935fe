"""Work that is larger than one process: inputs cut into shards, a ledger of what is done, and executors."""
