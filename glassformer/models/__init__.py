"""Whole models, put together from the blocks of :mod:`glassformer.nn`."""
