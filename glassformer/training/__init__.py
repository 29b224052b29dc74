"""Training, applied to models from outside."""
