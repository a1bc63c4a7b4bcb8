"""The embedded pair and the recipe that makes it: `python -m outrider.models.pyscout --help`."""
