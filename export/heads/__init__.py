"""Converts heads: models that draft from the hidden states of their target."""
