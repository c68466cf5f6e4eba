"""Sizes of a model: parameters, FLOPs and bytes, by part and in words."""
