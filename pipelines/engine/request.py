"""Request: the tokens and the cache of one answer, and when it ends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ..config import GenerationConfig
from ..errors import InvalidOption
from ..structured.constraint import Constraint
from ..text.tokenizer import TextStream
from .block_pool import BlockTable
from .logprobs import TokenLogprobs
from .sampling import Distribution, Logits, choose_token, restricted
from .trace import PassRecord, Statistics
from .verify import choose_beside

STOP, LENGTH, CANCELLED = "stop", "length", "cancelled"


class Request:
    """One answer in the making.

    `tokens` is the prompt and the accepted answer; `num_cached` of them have keys and values in `table`'s blocks. All
    ways for it to end (stop tokens, stop strings, a complete structure, length) are decided here, so that a draft never
    carries an answer past its end.

    text: turns the answer's tokens into text and finds stop strings.
    answer: which of several answers to the same prompt it is, from 0.
    constraint: what structured output allows.
    num_earlier_tokens: how many of the first tokens belong to earlier turns of a conversation.
    num_taken_over: tokens that were in the cache when the request was first admitted; None before that.
    sources: who proposed each token of the answer; TARGET if nobody did.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        config: GenerationConfig,
        max_new_tokens: int,
        text: TextStream | None = None,
        answer: int = 0,
        constraint: Constraint | None = None,
        num_earlier_tokens: int = 0,
    ) -> None:
        self.tokens = list(prompt)
        self.num_prompt_tokens = len(self.tokens)
        self.config = config
        self.max_new_tokens = max_new_tokens
        self.text = text
        self.answer = answer
        self.constraint = constraint
        self.num_earlier_tokens = num_earlier_tokens
        self.table = BlockTable()
        self.num_cached = 0
        self.num_taken_over: int | None = None
        self.sources: list[str] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.trace: list[PassRecord] = []
        self.submitted = time.perf_counter()

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]

    @property
    def num_new(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_slots(self) -> int:
        """Cache slots that the request can need at most."""
        return self.num_prompt_tokens + self.max_new_tokens

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    @property
    def statistics(self) -> Statistics:
        cached, rule = self.num_taken_over or 0, self.config.acceptance
        return Statistics.of(self.trace, self.submitted, self.num_prompt_tokens, cached, rule)

    def allows(self, ahead: Sequence[int], token: int) -> bool:
        """Whether a token may follow `tokens` and the tokens ahead of it."""
        return self.constraint is None or self.constraint.allows([*self.new_tokens, *ahead], token)

    def restricted(self, logits: Logits, ahead: Sequence[int]) -> Logits:
        """Logits after `tokens` and the tokens ahead, without the tokens that the answer's structure rules out."""
        if self.constraint is None:
            return logits
        return restricted(logits, self.constraint.allowed([*self.new_tokens, *ahead]))

    def choose(self, logits: Logits, kept: list[int]) -> int:
        """The token that the model with these logits writes after `tokens` and `kept`. Raises BrokenLogits."""
        logits = self.restricted(logits, kept)
        return choose_token(logits, self.tokens + kept, self.num_prompt_tokens, self.config, self.answer)

    def choose_beside(self, proposed: int, drawn_from: Distribution | None, logits: Logits, kept: list[int]) -> int:
        """The token after `tokens` and `kept` under a lossy acceptance rule, given the `proposed` one. Raises
        BrokenLogits."""
        logits, tokens = self.restricted(logits, kept), self.tokens + kept
        return choose_beside(proposed, drawn_from, logits, tokens, self.num_prompt_tokens, self.config, self.answer)

    def extend(self, tokens: list[int], sources: list[str], rows: Iterable[Logits] = ()) -> None:
        """Append the next tokens of the answer, up to the one that ends it.

        sources: who proposed each of them.
        rows: the logits that each was chosen from.

        Raises InvalidOption if the constraint cannot tell whether the first one ends the answer, and BrokenLogits.
        """
        tokens = tokens[: self.max_new_tokens - self.num_new]
        tokens, is_over = self._up_to_end(tokens)
        if self.text is not None:
            tokens = tokens[: self.text.extend(tokens, sources[: len(tokens)])]
        self.tokens += tokens
        self.sources += sources[: len(tokens)]
        if (num_top := self.config.logprobs) > 0:
            self.logprobs += [TokenLogprobs.of(*each, num_top) for each in zip(rows, tokens, strict=False)]
        if is_over or (self.text is not None and self.text.stopped):
            self.finish_reason = STOP
        elif self.num_new >= self.max_new_tokens:
            self.finish_reason = LENGTH

    def _up_to_end(self, tokens: list[int]) -> tuple[list[int], bool]:
        """The tokens up to the one that ends the answer, and whether one does.

        If the constraint fails at a token, the tokens before it are returned. They may end the answer with a stop
        string; if they do not, the next pass fails at that token, as it does in plain decoding.
        """
        for i, token in enumerate(tokens):
            try:
                is_last = self._ends(tokens[:i], token)
            except InvalidOption:
                if i == 0:
                    raise
                return tokens[:i], False
            if is_last:
                return tokens[: i + 1], True
        return tokens, False

    def _ends(self, before: list[int], token: int) -> bool:
        """Whether a token ends the answer."""
        if token in self.config.stop_ids:
            return True
        return self.constraint is not None and self.constraint.is_complete([*self.new_tokens, *before, token])
