"""Ready systems for tasks, with the scores they reach: one folder for each recipe.

NAME/recipe.yaml    what is trained on what, how it is scored, and the expected scores        (recipe.py)
NAME/*.yaml         the configs of its systems
NAME/prepare.py     from the data set's own files to train.tsv, valid.tsv and test.tsv; and generated example data
NAME/README.md      task, data, command, scores, outputs
"""

from dragoman.recipes.recipe import Recipe, load_recipe, recipe_names

__all__ = ["Recipe", "load_recipe", "recipe_names"]
