"""Other runtimes on the same prompts and weights, in turns with Outrider, for its developers."""
