"""Made-up and embedded data: synthetic tasks, scenes, the CMU Pronouncing Dictionary."""
