"""Interventions: take heads away, put clean activations back, and follow single paths."""
