"""Whole models, put together from the blocks of ``glassformer.nn``."""
