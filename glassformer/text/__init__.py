"""Text in and out: tokenizers, their training, languages, sentences, corpora that need no download."""
