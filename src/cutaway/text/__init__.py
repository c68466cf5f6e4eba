"""Text to token ids and back: tokenizers loaded from other people's files, or learnt from text."""
