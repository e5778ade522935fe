"""Models over HTTP: app.py has the routes, batcher.py the queue, worker_pool.py the processes that compute."""
