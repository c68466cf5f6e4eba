"""How large a model is, by its parts and in words."""
