"""Speculative decoding: who drafts, how much, and what it costs."""
