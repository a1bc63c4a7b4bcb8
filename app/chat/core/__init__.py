"""Conversations, settings, and what was measured of an answer; nothing here knows of the page or of storage."""
