"""Whole models: what a config says, built from the parts."""
