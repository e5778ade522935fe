"""Where a run reports its metrics besides metrics.jsonl: one file per tracker."""
