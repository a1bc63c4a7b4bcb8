"""The engine: requests, their cache, one pass over all of them, and the tokens that come of it."""
