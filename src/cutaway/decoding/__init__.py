"""Writing text with any model that has a decoder: greedy, beam search and sampling over `encode` and `decode` only."""
