"""Pairs of texts to train on: from files of any usual kind, row by row, and cleaned by stated rules."""
