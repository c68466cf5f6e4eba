"""The worked examples and the questions of the lecture notes, recomputed."""
