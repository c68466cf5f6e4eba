"""Traces: every named value on the way of one input, with the words on its axes."""
