"""Traces drawn: in a terminal, as pictures, as pages, in notebooks, as JSON."""
