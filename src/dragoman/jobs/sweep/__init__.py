"""Hyperparameter search by Optuna: many trainings of one config, each with other values of some of its options.

    space.py      which options, and over which values; checked before the first trial
    folder.py     the sweep's folder: settings, Optuna's journal, and the locks that say which trials are alive
    trial.py      what a worker does: claim a trial, train it, tell Optuna its value
    worker.py     a worker as a process; executors.py and on_ray.py start them
    driver.py     keeps workers at work until so many trials are finished
    results.py    sweep.json, trials.tsv and best.yaml

Any number of drivers, on one machine or several, may work on one folder.
"""
