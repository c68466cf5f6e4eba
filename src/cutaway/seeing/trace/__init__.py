"""Traces: every named value of one run, with the tokens on its axes."""
