"""What `dragoman data check` says about pairs: one pass over them, the findings, the report."""
