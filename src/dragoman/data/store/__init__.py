"""Token ids in memory-mapped files: the store, its builder and its cache."""
