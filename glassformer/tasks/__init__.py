"""Tasks of a loaded model besides generation: fill, score, embed, classify, tag, answer."""
