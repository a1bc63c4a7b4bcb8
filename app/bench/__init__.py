"""The benchmark: every mode against plain decoding, and against the best possible schedule."""
