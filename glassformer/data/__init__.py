"""Data in: from text to batches."""
