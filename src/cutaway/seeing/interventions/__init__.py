"""Interventions: values that are zeroed, scaled, set or patched, parts that are switched off; what that changes."""
