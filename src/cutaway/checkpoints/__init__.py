"""Weights on disk."""

from cutaway.checkpoints.native import load, save

__all__ = ["load", "save"]
