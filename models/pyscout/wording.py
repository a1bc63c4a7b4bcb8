"""How people ask: the usual wording of each task first, then the variations that a share of the prompts takes."""

from __future__ import annotations

WORDING: dict[str, tuple[str, ...]] = {
    "rename": (
        "Rename `{old}` to `{new}`:",
        "Rename {old} to {new}:",
        "Rename `{old}` to `{new}` in this function:",
        "Please rename `{old}` to `{new}`.",
        "Change the name `{old}` to `{new}`.",
        "Replace the name `{old}` with `{new}`:",
        "In this function, call `{old}` `{new}` instead.",
        "rename {old} to {new}",
    ),
    "undoc": (
        "Remove the docstring:",
        "Remove the docstring from this function:",
        "Delete the docstring.",
        "Strip the docstring from this function.",
        "Please remove the docstring.",
        "remove docstring",
    ),
    "repeat": (
        "Repeat this function:",
        "Repeat this code exactly:",
        "Copy this function without any change:",
        "Print this function again.",
        "Please repeat the function.",
        "repeat",
    ),
    "doc": (
        "Add a docstring:",
        "Add a docstring to this function:",
        "Document this function.",
        "Write a docstring for this function:",
        "Please add a docstring.",
        "add docstring",
    ),
    "complete": (
        "Complete this function:",
        "Complete the function:",
        "Finish this function.",
        "Continue this code:",
        "Please complete this function.",
        "complete",
    ),
    "write": (
        "Write this function:",
        "Implement this function:",
        "Write the body of this function.",
        "Fill in this function:",
        "Please implement this function.",
        "implement",
    ),
}

FOLLOW_UPS: dict[str, tuple[str, ...]] = {
    "rename": (
        "Now rename `{old}` to `{new}`.",
        "Rename `{old}` to `{new}`.",
        "Also rename `{old}` to `{new}`.",
        "And {old} to {new}, please.",
    ),
    "undoc": ("Now remove the docstring.", "Remove the docstring.", "And without the docstring?"),
    "repeat": ("Repeat it.", "Show it again.", "Once more, please."),
}

SYSTEM = ("You edit Python functions.", "You are a coding assistant.", "Answer with code only.")
