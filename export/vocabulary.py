"""The vocabulary of a checkpoint: which id stands for which token."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .checkpoint import Checkpoint
from .errors import TokenizerNotConverted
from .quiet import quiet


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The transformers tokenizer of a checkpoint. Raises TokenizerNotConverted where there is none."""
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(checkpoint.folder, trust_remote_code=checkpoint.remote_code)
    except Exception as error:
        raise TokenizerNotConverted(
            f"{checkpoint.source} has no tokenizer that transformers can load ({type(error).__name__}): "
            "put its tokenizer files into the folder, tokenizer.json above all."
        ) from error


def vocabulary(tokenizer: Any) -> dict[bytes, int]:
    """The id of each token, added tokens included."""
    return {token.encode(): token_id for token, token_id in tokenizer.get_vocab().items()}


def digest(vocabulary: Mapping[bytes, int]) -> str:
    """SHA-256 of a vocabulary."""
    pairs = sorted((token_id, token.decode()) for token, token_id in vocabulary.items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
