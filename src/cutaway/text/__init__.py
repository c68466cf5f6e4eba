"""Text to token ids and back: tokenizers loaded from the files of other libraries, or trained on text."""
