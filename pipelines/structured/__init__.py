"""Structured output: answers that keep to a schema, a regular expression or a grammar."""
