"""One file per view: a pipeline → plain data that JSON can hold."""
