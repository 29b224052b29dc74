"""A training run as a page of settings: recipes, their YAML files, the rows and the new model that they describe."""
