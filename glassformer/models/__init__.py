"""Whole models, composed of the blocks of ``glassformer.nn``."""
