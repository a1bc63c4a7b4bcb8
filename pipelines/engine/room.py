"""Room: how long prompts and answers may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import CacheTooSmall, PromptTooLong
from .block_pool import BlockPool
from .request import Request


@dataclass(frozen=True, slots=True)
class Room:
    """The most tokens of a prompt and its answer together, what the user can change to get more, and the most tokens of
    a prompt. In `remedy`, "{tokens}" stands for the number that is needed."""

    tokens: int
    remedy: str
    prompt_tokens: float = math.inf

    @classmethod
    def of(cls, pool: BlockPool) -> Room:
        """That of a cache on the CPU."""
        return cls(pool.num_tokens, "cache_tokens={tokens} or more")

    def require(self, request: Request) -> None:
        """Raises PromptTooLong and CacheTooSmall."""
        prompt, new, tokens = request.num_prompt_tokens, request.max_new_tokens, request.num_slots
        remedy = self.remedy.format(tokens=tokens)
        if prompt > self.prompt_tokens:
            raise PromptTooLong(
                f"The prompt has {prompt} tokens and this device was prepared for {self.prompt_tokens}: shorten the "
                f"prompt, or load the pair with {remedy}."
            )
        if tokens > self.tokens:
            raise CacheTooSmall(
                f"The request needs a cache of {tokens} tokens ({prompt} of the prompt and up to {new} new ones), and "
                f"the cache holds {self.tokens}: lower max_new_tokens, shorten the prompt, or load the pair with "
                f"{remedy}."
            )
