"""What a conversation consists of, and what is shown of it."""
