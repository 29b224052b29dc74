"""Writing with a model: from logits to tokens."""
