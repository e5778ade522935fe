"""Generated and embedded data: synthetic tasks, rendered scenes, the CMU Pronouncing Dictionary."""
