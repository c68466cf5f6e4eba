"""Five lecture notes on the Transformer: their worked examples, recomputed, and their quiz, demonstrated."""
