"""Tokenizers and their training, chat templates, languages, sentences."""
