"""A table of speeds on a GPU: ours, and what people use instead, measured in the same process. See ``__main__``."""
