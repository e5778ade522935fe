"""The token store: ids in memory-mapped files, with its builder and its cache."""
