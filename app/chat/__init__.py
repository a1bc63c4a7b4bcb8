"""The chat page: what it keeps, what it says and how it looks."""
