"""Text in and out: corpora that need no download."""
