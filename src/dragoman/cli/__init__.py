"""One file for each command: read inputs, call one function, print. Nothing heavy is imported before it is needed."""
