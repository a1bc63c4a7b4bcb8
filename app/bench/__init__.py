"""The benchmark: plain decoding and every mode in turns on this machine, and how close they come to the best."""
