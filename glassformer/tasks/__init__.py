"""What a loaded model does besides generating text: fill, score, embed, classify, tag, answer."""
