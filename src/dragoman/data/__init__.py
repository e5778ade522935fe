"""Files → batches: readers, the data doctor, the store of ids, and batching."""
