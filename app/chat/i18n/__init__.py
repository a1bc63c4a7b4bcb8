"""What the page says, in each language."""
