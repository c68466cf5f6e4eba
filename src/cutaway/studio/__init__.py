"""The studio: a page on this machine that shows a model at work, and the API behind it."""
