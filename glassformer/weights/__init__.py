"""Weights in and out: from files to tensors and back."""
