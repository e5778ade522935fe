"""Models behind an HTTP API that people can leave running: see app.py for its routes, workers.py for its processes."""
