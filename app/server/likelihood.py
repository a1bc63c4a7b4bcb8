"""Likelihood: what `logprobs` asks for, in the forms of both endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from outrider.pipelines import Tokenizer, TokenLogprobs

from .responses import ChatLogprobs, CompletionLogprobs, TokenLikelihood, TopLikelihood

LEAST = -9999.0  # how OpenAI writes the logarithm of 0, which JSON cannot
INCOMPLETE = "\ufffd"


class Likelihood:
    """Puts tokens into words. `num_top` of the likeliest are told beside each that was written."""

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._num_top = num_top
        self._text = lru_cache(maxsize=None)(lambda token: tokenizer.decode([token]))

    def of_chat(self, tokens: Iterable[TokenLogprobs]) -> ChatLogprobs:
        return ChatLogprobs(content=[self._entry(token) for token in tokens], refusal=None)

    def of_completion(self, tokens: Iterable[TokenLogprobs], offset: int) -> CompletionLogprobs:
        """`offset` is where in the text the first of them begins; each then begins where the one before ends."""
        result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token in tokens:
            text = self._text(token.token)
            result.tokens.append(text)
            result.token_logprobs.append(max(token.logprob, LEAST))
            result.top_logprobs.append({self._text(i): max(logprob, LEAST) for i, logprob in self._top(token)})
            result.text_offset.append(offset)
            offset += len(text)
        return result

    def _entry(self, token: TokenLogprobs) -> TokenLikelihood:
        top = [self._likely(i, logprob) for i, logprob in self._top(token)]
        return TokenLikelihood(**self._likely(token.token, token.logprob).model_dump(), top_logprobs=top)

    def _top(self, token: TokenLogprobs) -> tuple[tuple[int, float], ...]:
        return token.top[: self._num_top]

    def _likely(self, token: int, logprob: float) -> TopLikelihood:
        """Where a token is only a part of a character, its bytes are not told."""
        text = self._text(token)
        encoded = None if INCOMPLETE in text else list(text.encode())
        return TopLikelihood(token=text, logprob=max(logprob, LEAST), bytes=encoded)
