"""Log-probabilities in the formats of both endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from outrider.pipelines import Tokenizer, TokenLogprobs

from .responses import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TopLogprob

LEAST = -9999.0  # what OpenAI sends for the logarithm of 0, which JSON cannot express
INCOMPLETE = "\ufffd"


class LogprobsFormatter:
    """Formats the log-probability of each generated token, and those of the `num_top` likeliest tokens beside it."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._num_top = num_top
        self._text = lru_cache(maxsize=None)(lambda token: tokenizer.decode([token]))

    def for_chat(self, tokens: Iterable[TokenLogprobs]) -> ChatLogprobs:
        return ChatLogprobs(content=[self._entry(token) for token in tokens], refusal=None)

    def for_completion(self, tokens: Iterable[TokenLogprobs], offset: int) -> CompletionLogprobs:
        """`offset`: where the first token begins in the text, in characters."""
        result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token in tokens:
            text = self._text(token.token)
            result.tokens.append(text)
            result.token_logprobs.append(max(token.logprob, LEAST))
            result.top_logprobs.append({self._text(i): max(logprob, LEAST) for i, logprob in self._top(token)})
            result.text_offset.append(offset)
            offset += len(text)
        return result

    def _entry(self, token: TokenLogprobs) -> ChatTokenLogprob:
        top = [self._top_logprob(i, logprob) for i, logprob in self._top(token)]
        return ChatTokenLogprob(**self._top_logprob(token.token, token.logprob).model_dump(), top_logprobs=top)

    def _top(self, token: TokenLogprobs) -> tuple[tuple[int, float], ...]:
        return token.top[: self._num_top]

    def _top_logprob(self, token: int, logprob: float) -> TopLogprob:
        """`bytes` is None for a token that holds only a part of a character."""
        text = self._text(token)
        encoded = None if INCOMPLETE in text else list(text.encode())
        return TopLogprob(token=text, logprob=max(logprob, LEAST), bytes=encoded)
