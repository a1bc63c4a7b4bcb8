"""The local server: OpenAI's API for one pipeline."""
