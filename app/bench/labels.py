"""What the tables and plots call those who propose tokens."""

LABELS = {
    "target": "the model", "prompt_lookup": "prompt lookup", "suffix": "text index", "reference": "your files",
    "earlier_turn": "earlier turn",
    "draft_model": "draft model", "grammar": "required form",
}  # fmt: skip
