"""Streamers: functions and objects of OpenVINO GenAI that follow an answer, and may end it."""

from __future__ import annotations

import openvino_genai
import pytest

from outrider.pipelines import InvalidOption, LLMPipeline

RENAME = "Rename `width` to `breadth`.\n\ndef area(width, height):\n    return width * height\n"


@pytest.fixture(autouse=True)
def nothing_is_left_behind(pipeline: LLMPipeline):
    yield
    assert pipeline.speculation._pool.num_free == pipeline.speculation._pool.num_blocks, "blocks leaked"
    pipeline.finish_chat()


def test_a_streamer_sees_the_text_and_can_stop_it(pipeline: LLMPipeline):
    seen: list[str] = []
    whole = pipeline.generate(RENAME, max_new_tokens=30, streamer=seen.append)
    assert "".join(seen) == whole
    for stop in (True, 1, 2, openvino_genai.StreamingStatus.STOP, openvino_genai.StreamingStatus.CANCEL):
        answer = pipeline.generate(RENAME, max_new_tokens=30, streamer=lambda text, stop=stop: stop)
        assert answer.generations[0].finish_reason == "cancelled"
        assert whole.startswith(answer)
        assert len(answer) < len(whole)
    for go_on in (None, False, 0, openvino_genai.StreamingStatus.RUNNING):
        assert pipeline.generate(RENAME, max_new_tokens=30, streamer=lambda text, go=go_on: go) == whole


@pytest.mark.parametrize(
    "stop", [True, openvino_genai.StreamingStatus.STOP, openvino_genai.StreamingStatus.CANCEL], ids=str
)
@pytest.mark.parametrize("is_base", [False, True])
def test_a_streamer_that_stopped_the_answer_is_not_called_again(pipeline: LLMPipeline, stop, is_base: bool):
    calls: list[object] = []

    def stopping(piece: object):
        calls.append(piece)
        return stop if len(calls) == 3 else openvino_genai.StreamingStatus.RUNNING

    class Base(openvino_genai.StreamerBase):
        ends = 0

        def write(self, tokens):
            return stopping(tokens)

        def end(self):
            self.ends += 1

    base = Base()
    whole = pipeline.generate(RENAME, max_new_tokens=30)
    answer = pipeline.generate(RENAME, max_new_tokens=30, mode="off", streamer=base if is_base else stopping)
    assert len(calls) == 3
    assert base.ends == is_base
    (generation,) = answer.generations
    assert "".join(span.text for span in generation.spans) == answer
    if is_base:
        assert [token for tokens in calls for token in tokens] == list(generation.token_ids)
    assert answer.startswith("" if is_base else "".join(map(str, calls)))
    assert whole.startswith(answer)
    assert answer == pipeline.tokenizer.decode(generation.token_ids), "what was held back is not lost"


@pytest.mark.parametrize("at", ["first", "last"])
def test_a_chat_keeps_what_a_streamer_stopped_and_forgets_what_it_cancelled(pipeline: LLMPipeline, at: str):
    def then(status: openvino_genai.StreamingStatus):
        pieces: list[str] = []

        def streamer(text: str) -> openvino_genai.StreamingStatus | None:
            pieces.append(text)
            return status if at == "first" or len("".join(pieces)) == len(whole) else None

        return streamer

    whole = pipeline.generate(RENAME, max_new_tokens=12)
    messages = [{"role": "user", "content": RENAME}]
    for status in (openvino_genai.StreamingStatus.STOP, openvino_genai.StreamingStatus.CANCEL):
        pipeline.start_chat()
        answer = pipeline.generate(RENAME, max_new_tokens=12, streamer=then(status))
        assert (answer == whole) == (at == "last")
        kept = [*messages, {"role": "assistant", "content": str(answer)}]
        before = kept if status == openvino_genai.StreamingStatus.STOP else []
        following = pipeline.generate("Now remove it.", max_new_tokens=12)
        pipeline.finish_chat()
        expected = pipeline.generate([*before, {"role": "user", "content": "Now remove it."}], max_new_tokens=12)
        assert [following] == expected.texts


def test_a_streamer_of_openvino_genai_gets_the_tokens(pipeline: LLMPipeline):
    class Collector(openvino_genai.StreamerBase):
        def __init__(self):
            super().__init__()
            self.tokens, self.ends = [], 0

        def write(self, tokens):
            self.tokens += tokens if isinstance(tokens, list) else [tokens]
            return openvino_genai.StreamingStatus.RUNNING

        def end(self):
            self.ends += 1

    collector = Collector()
    answer = pipeline.generate(RENAME, max_new_tokens=12, streamer=collector)
    assert tuple(collector.tokens) == answer.generations[0].token_ids
    assert collector.ends == 1


def test_a_streamer_of_openvino_genai_that_parses_gets_messages(pipeline: LLMPipeline):
    class Parsing(openvino_genai.TextParserStreamer):
        def __init__(self, status: openvino_genai.StreamingStatus):
            super().__init__(openvino_genai.Tokenizer(pipeline.pair.target))
            self.status = status

        def write(self, message):
            assert isinstance(message["content"], str)
            return self.status

    going_on, stopping = (Parsing(getattr(openvino_genai.StreamingStatus, name)) for name in ("RUNNING", "STOP"))
    for prompt in (RENAME, "Repeat it."):  # the second message has nothing of the first
        answer = pipeline.generate(prompt, max_new_tokens=12, streamer=going_on)
        assert going_on.get_parsed_message() == {"content": answer}
    answer = pipeline.generate(RENAME, max_new_tokens=30, streamer=stopping)
    assert answer.generations[0].finish_reason == "cancelled"


def test_a_streamer_that_parses_and_does_nothing_with_messages_is_refused(pipeline: LLMPipeline):
    bare = openvino_genai.TextParserStreamer(openvino_genai.Tokenizer(pipeline.pair.target))
    with pytest.raises(InvalidOption, match="no `write` of its own: derive a class"):
        pipeline.generate(RENAME, max_new_tokens=2, streamer=bare)


def test_an_error_in_a_streamer_frees_the_blocks(pipeline: LLMPipeline):
    with pytest.raises(ZeroDivisionError):
        pipeline.generate(RENAME, max_new_tokens=30, streamer=lambda text: 1 / 0)
    assert pipeline.generate("x", max_new_tokens=2).stats[0].new_tokens <= 2


@pytest.mark.parametrize("stop", ["return", "eturn breadth *", "\n\n", "never written"])
@pytest.mark.parametrize("mode", ["off", "suffix"])
def test_an_object_that_follows_the_tokens_shows_what_is_returned(pipeline: LLMPipeline, stop: str, mode: str):
    shown: list[str] = []
    tokenizer = openvino_genai.Tokenizer(pipeline.pair.target)
    streamer = openvino_genai.TextStreamer(tokenizer, lambda text: shown.append(text))
    answer = pipeline.generate(RENAME, max_new_tokens=40, stop_strings={stop}, mode=mode, streamer=streamer)
    assert answer.startswith("".join(shown))
    assert len(answer) - len("".join(shown)) < 8, "no more is left out than the token that holds the stop string"


def test_an_object_that_follows_the_tokens_shows_the_stop_string_that_is_kept(pipeline: LLMPipeline):
    shown: list[str] = []
    tokenizer = openvino_genai.Tokenizer(pipeline.pair.target)
    streamer = openvino_genai.TextStreamer(tokenizer, lambda text: shown.append(text))
    kept = {"stop_strings": {"retu"}, "include_stop_str_in_output": True, "max_new_tokens": 40}
    answer = pipeline.generate(RENAME, streamer=streamer, **kept)
    assert answer.endswith("retu")
    assert "".join(shown).startswith(answer)
    assert len("".join(shown)) - len(answer) < 8, "no more is shown than the token that contains its end"


def test_a_dictionary_is_a_configuration_as_in_openvino_genai(pipeline: LLMPipeline):
    given = {"max_new_tokens": 5, "stop_strings": {"xyz"}}
    assert pipeline.generate(RENAME, given) == pipeline.generate(RENAME, **given)
    with pytest.raises(InvalidOption, match="generation_config=5 is no configuration"):
        pipeline.generate(RENAME, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("streamer", [5, "print"])
def test_what_cannot_be_called_is_refused_before_anything_is_written(pipeline: LLMPipeline, streamer):
    with pytest.raises(InvalidOption, match="cannot be called: give a function"):
        pipeline.generate(RENAME, streamer=streamer)


def test_an_answer_that_no_status_is_refused(pipeline: LLMPipeline):
    with pytest.raises(InvalidOption, match="The streamer returned 'yes': return"):
        pipeline.generate(RENAME, max_new_tokens=8, streamer=lambda text: "yes")
