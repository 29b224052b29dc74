"""What a loaded model is used for besides writing: blanks filled, texts scored, embedded, classified, tagged, asked."""
