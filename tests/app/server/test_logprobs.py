"""Log-probabilities: every token is told with what it adds to the text, also within a character."""

from __future__ import annotations

import pytest

from outrider.app.server.logprobs import LEAST, LogprobsFormatter, TextLength
from outrider.pipelines import LLMPipeline, Tokenizer, TokenLogprobs

TEXT = "naïve 你好 ☕👍🏽 é\n"


@pytest.fixture(scope="module")
def tokenizer(pipeline: LLMPipeline) -> Tokenizer:
    return pipeline.tokenizer


@pytest.fixture(scope="module")
def tokens(tokenizer: Tokenizer) -> list[TokenLogprobs]:
    """TEXT and the end of the answer, each token with four alternatives that end within a character."""
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    parts = tuple((i, -9.0) for i in {i for i in ids if "\ufffd" in tokenizer.decode([i])})[:4]
    assert len(parts) == 4
    assert tokenizer.eos_token_id is not None
    return [TokenLogprobs(i, -0.5, ((i, -0.5), *parts)) for i in [*ids, tokenizer.eos_token_id]]


def test_the_bytes_of_a_chat_add_up_to_its_text(tokenizer: Tokenizer, tokens: list[TokenLogprobs]) -> None:
    content = LogprobsFormatter(tokenizer, 5).for_chat(tokens).content
    assert b"".join(bytes(entry.bytes or ()) for entry in content) == TEXT.encode()
    assert (content[-1].token, content[-1].bytes) == ("<|end|>", None)
    for entry in content[:-1]:
        assert entry.bytes is not None
        assert entry.token == bytes(entry.bytes).decode(errors="backslashreplace")
        assert [top.bytes is None for top in entry.top_logprobs] == [False] * len(entry.top_logprobs)


@pytest.mark.parametrize("cut", [None, 1, 3])
def test_a_completion_tells_where_each_token_begins(
    tokenizer: Tokenizer, tokens: list[TokenLogprobs], cut: int | None
) -> None:
    formatter, text = LogprobsFormatter(tokenizer, 5), TextLength()
    steps = range(0, len(tokens), cut or len(tokens))
    parts = [formatter.for_completion(tokens[i : i + steps.step], text) for i in steps]
    added = [bytes(entry.bytes or ()) for entry in formatter.for_chat(tokens).content]
    expected = [len(b"".join(added[:i]).decode(errors="ignore")) for i in range(len(tokens))]
    assert [offset for part in parts for offset in part.text_offset] == expected
    for top in (top for part in parts for top in part.top_logprobs):
        assert len(top) in (4, 5), "alternatives that are parts of characters have one name"
    written = [token for part in parts for token in part.tokens]
    assert [token.startswith("bytes:\\x") or "\\x" in token for token in written] == [
        "\ufffd" in tokenizer.decode([token.token]) for token in tokens
    ]


def test_what_the_vocabulary_does_not_know_has_no_text(tokenizer: Tokenizer) -> None:
    beyond = TokenLogprobs(0, float("-inf"), ((0, float("-inf")), (10**6, -1.0)))
    (entry,) = LogprobsFormatter(tokenizer, 2).for_chat([beyond]).content
    assert entry.logprob == LEAST
    assert [top.token for top in entry.top_logprobs] == ["<|end|>", ""]


@pytest.mark.parametrize(("num_top", "listed"), [(0, [5]), (1, [6, 5]), (2, [6, 7, 5]), (3, [6, 7, 5])])
def test_a_completion_lists_the_chosen_token_beside_the_likeliest(
    tokenizer: Tokenizer, num_top: int, listed: list[int]
) -> None:
    chosen = TokenLogprobs(5, -2.5, ((6, -0.5), (7, -1.5), (5, -2.5)))
    formatter = LogprobsFormatter(tokenizer, num_top)
    (told,) = formatter.for_completion([chosen], TextLength()).top_logprobs
    known = dict(chosen.top)
    assert told == {formatter._unique(token): known[token] for token in listed}
