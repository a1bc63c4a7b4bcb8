"""A pair on disk, and a model of it on this machine: its graph, its properties, its exactness."""
