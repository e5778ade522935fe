"""Files → batches: readers, checks of data quality, the token store, objectives and batching."""
