"""Log-probabilities in the formats of both endpoints."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from functools import lru_cache

from outrider.pipelines import Tokenizer, TokenLogprobs
from outrider.pipelines.text.token_bytes import TokenBytes

from .responses import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TopLogprob

LEAST = -9999.0  # what OpenAI sends for the logarithm of 0, which JSON cannot express


class LogprobsFormatter:
    """Formats the log-probability of each generated token, and those of the `num_top` likeliest tokens at its position.

    As OpenAI does, it writes the bytes of a token that is only a part of a character as "\\xe4". A token that adds
    nothing to the text, such as the end of an answer, has its name and no bytes.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._num_top = num_top
        self._tokenizer = tokenizer
        self._known = _bytes_of(tokenizer)

    def for_chat(self, tokens: Iterable[TokenLogprobs]) -> ChatLogprobs:
        return ChatLogprobs(content=[self._entry(token) for token in tokens], refusal=None)

    def for_completion(self, tokens: Iterable[TokenLogprobs], text: TextLength) -> CompletionLogprobs:
        """`text`: how long the text before the first token is; the tokens are added to it.

        As OpenAI does, it lists the chosen token, too, where it is not among the likeliest.
        """
        result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token in tokens:
            result.tokens.append(self._unique(token.token))
            result.token_logprobs.append(max(token.logprob, LEAST))
            listed = dict([*self._top(token), (token.token, token.logprob)])
            result.top_logprobs.append({self._unique(i): max(logprob, LEAST) for i, logprob in listed.items()})
            result.text_offset.append(text.characters)
            text.add(self._added(token.token) or b"")
        return result

    def _entry(self, token: TokenLogprobs) -> ChatTokenLogprob:
        top = [self._top_logprob(i, logprob) for i, logprob in self._top(token)]
        return ChatTokenLogprob(**self._top_logprob(token.token, token.logprob).model_dump(), top_logprobs=top)

    def _top(self, token: TokenLogprobs) -> tuple[tuple[int, float], ...]:
        return token.top[: self._num_top]

    def _top_logprob(self, token: int, logprob: float) -> TopLogprob:
        added = self._added(token)
        encoded = None if added is None else list(added)
        return TopLogprob(token=self._shown(token), logprob=max(logprob, LEAST), bytes=encoded)

    def _added(self, token: int) -> bytes | None:
        """What a token adds to a text; None if nothing."""
        return None if token in self._known.special else self._bytes(token)

    def _bytes(self, token: int) -> bytes:
        known = self._known.of[token] if token < len(self._known.of) else b""
        return known or self._tokenizer.decode([token]).encode()

    def _shown(self, token: int) -> str:
        return self._bytes(token).decode(errors="backslashreplace")

    def _unique(self, token: int) -> str:
        """The token as it is shown, with a mark if it is not whole characters, as texts are keys in completions."""
        try:
            return self._bytes(token).decode()
        except UnicodeDecodeError:
            return f"bytes:{self._shown(token)}"


class TextLength:
    """The length of a text in whole characters, to which bytes are added."""

    def __init__(self) -> None:
        self.characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, some: bytes) -> None:
        self.characters += len(self._decoder.decode(some))


@lru_cache(maxsize=1)
def _bytes_of(tokenizer: Tokenizer) -> TokenBytes:
    """Read once for a server, which takes a second with a large vocabulary."""
    return TokenBytes.read(tokenizer)
