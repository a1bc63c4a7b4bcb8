"""Where conversations are kept, and how they come and go as files."""
