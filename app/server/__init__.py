"""The local server: OpenAI's API over one pipeline."""
