"""Interventions: values zeroed, scaled, set or patched, parts switched off, and runs compared."""
