"""Data quality: what `dragoman data check` reports about files of pairs."""
