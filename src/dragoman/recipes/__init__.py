"""Ready systems for tasks, with the scores they reach: one folder for each recipe.

NAME/recipe.yaml    what is trained on what, how it is scored, and what to expect        (recipe.py)
NAME/*.yaml         the configs of its systems
NAME/prepare.py     from the data set's own files to train.tsv, valid.tsv and test.tsv; and made-up data of that form
NAME/README.md      task, data, command, scores, outputs
"""

from dragoman.recipes.recipe import Recipe, names, open_recipe

__all__ = ["Recipe", "names", "open_recipe"]
