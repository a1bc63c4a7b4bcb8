"""Labels of drafters in tables and plots."""

LABELS = {
    "target": "the model", "prompt_lookup": "prompt lookup", "suffix": "text index",
    "recycling": "token recycling", "earlier_turn": "earlier turn", "reference": "your files",
    "draft_model": "draft model", "head": "head", "layer_skipping": "fewer layers",
    "early_exit": "early exit", "grammar": "required form",
}  # fmt: skip
