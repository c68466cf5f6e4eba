"""Proofs that take too long for every day: what is promised to strangers, tried as they would."""
