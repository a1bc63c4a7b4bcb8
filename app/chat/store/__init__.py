"""Storage of conversations, and their import and export."""
