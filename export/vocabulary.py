"""The vocabulary of a checkpoint: its tokens and their ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .checkpoint import Checkpoint
from .errors import TokenizerNotConverted
from .quiet import quiet
from .renamed import known_form

TOKENIZER_FILES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken")


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The transformers tokenizer of a checkpoint. Raises TokenizerNotConverted if there is none."""
    from transformers import AutoTokenizer

    # Without any of these, transformers creates an empty tokenizer for some architectures.
    if not any(next(checkpoint.folder.glob(pattern), None) for pattern in TOKENIZER_FILES):
        raise TokenizerNotConverted(
            f"{checkpoint.source} has no tokenizer: copy {checkpoint.folder} to a folder of your own, put its "
            f"tokenizer.json there, and give that folder in place of {checkpoint.source}."
        )
    try:
        with quiet(), known_form(checkpoint) as folder:
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=checkpoint.remote_code)
    except Exception as error:
        raise TokenizerNotConverted(
            f"transformers cannot load the tokenizer of {checkpoint.source}: {type(error).__name__}: {error}"
        ) from error


def vocabulary(tokenizer: Any) -> dict[bytes, int]:
    """The id of each token in UTF-8, including added tokens."""
    return {token.encode(): token_id for token, token_id in tokenizer.get_vocab().items()}


def digest(vocabulary: Mapping[bytes, int]) -> str:
    """The SHA-256 digest of a vocabulary in hexadecimal."""
    pairs = sorted((token_id, token.decode()) for token, token_id in vocabulary.items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
