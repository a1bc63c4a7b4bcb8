"""Labels of drafters in tables and plots."""

from __future__ import annotations

from .heads import parted

LABELS = {
    "target": "the model", "prompt_lookup": "prompt lookup", "suffix": "text index",
    "recycling": "token recycling", "earlier_turn": "earlier turn", "reference": "your files",
    "draft_model": "draft model", "head": "head", "layer_skipping": "fewer layers",
    "early_exit": "early exit", "grammar": "required form",
}  # fmt: skip


def label_of(drafter: str) -> str:
    """The label of a drafter, which may be numbered, such as "head 2"."""
    name, number = parted(drafter)
    return f"{LABELS.get(name, name)} {number or ''}".rstrip()


def named(drafter: str) -> str:
    """The label as a sentence has it: "the draft model", but "head 2"."""
    return label_of(drafter) if parted(drafter)[1] else f"the {label_of(drafter)}"
