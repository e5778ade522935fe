"""Work larger than one process: predictions in shards, sweeps."""
