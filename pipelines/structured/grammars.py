"""Grammars: compiles structured output configurations to constraints."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from math import lcm
from threading import Lock
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from ..config import GenerationConfig
from ..errors import ImpossibleForm
from ..text.token_bytes import TokenBytes
from ..text.tokenizer import Tokenizer
from . import gbnf, json_schema
from .constraint import Constraint

EXPECTED = {
    "json_schema": "a JSON schema, as JSON text, of keywords that llguidance knows",
    "regex": "a regular expression in the syntax of Rust's regex, without look-around and back references",
    "grammar": "a context-free grammar in Lark's notation or in GBNF",
}
# llguidance recurses into each definition within another one, and an overflow of the stack would end the process. It
# refuses schemas that would need more than this stack; a grammar of the greatest length has 15,000 definitions at most.
STACK = 256 << 20  # bytes of the address space; of memory, only what is used
LONGEST_GRAMMAR = 200_000  # characters
MOST_SHOWN = 200  # characters of a form, or of llguidance's reason, in an error
# llguidance keeps a state for each remainder of a division by the least common multiple of a schema's divisors, without
# their factors 2 and 5. A million states take some 10 s and half a gigabyte, and it has no limit of its own.
DIVISOR = re.compile(r'"multipleOf"\s*:\s*([0-9]+)(?:\.([0-9]+))?')
MOST_REMAINDERS = 100_000
# In llguidance's reasons: what is for its authors, the lines of the grammar, and an option that requests do not have.
NOT_TOLD = re.compile(r"\n(?:<| +\d+ \| ).*", re.DOTALL)
ONE_OF = re.compile(r"oneOf constraints are not supported.*")
ONE_OF_TOLD = (
    "oneOf is supported only where types, constants, or constants of a required property tell the alternatives apart: "
    "give anyOf"
)
# llguidance reads a line break in a regular expression as the character, also where `x` makes it insignificant, and
# the temperature of a rule has no effect without its own sampler.
VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
TEMPERED = re.compile(r"^\s*[?!]?\w+\s*\[[^]\n]*\btemperature\s*=", re.MULTILINE)
ANCHOR = "\x02"  # not a part of any longer token
# The white space of pretty-printed JSON. Without a bound, an uncertain model can write blank lines without end.
WHITE_SPACE = r" |\n[ \t]{0,40}"
MOST_BEFORE = 3  # tokens that the anchor and the space before it can take
LONGEST_FORCED = 256  # characters: llguidance tokenizes forced text again after each token
AT_A_CUT = 4  # tokens at the end of a cut text that its continuation could change

T = TypeVar("T")
_sizing_stack = Lock()  # held while the stack size is changed, which is that of all threads that begin


class Grammars:
    """Compiles grammars for one tokenizer. The first use reads the vocabulary, which takes seconds if it is large."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()
        self._vocabulary: _Vocabulary | None = None

    def constraint(self, config: GenerationConfig) -> Constraint | None:
        """The constraint of a request, or None. Raises ImpossibleForm with llguidance's reason."""
        if config.structured_output_config is None:
            return None
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = _Vocabulary(self._tokenizer)
        name, text = config.structured_output_config.form
        try:
            _check_divisors(text)
            grammar = _with_deep_stack(lambda: _written(name, text))
        except ValueError as error:
            raise _impossible(name, text, str(error)) from error
        vocabulary = self._vocabulary

        def make() -> LLMatcher:
            limits = LLParserLimits(verbose_errors=False)
            return _with_deep_stack(lambda: LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=limits))

        if (matcher := make()).is_error():
            raise _impossible(name, text, matcher.get_error())
        constraint = Constraint(matcher, make, vocabulary.end, config.stop_ids & vocabulary.special)
        if constraint.allowed(()) is None:
            raise _impossible(name, text, "it allows nothing but an empty answer")
        return constraint


def _written(name: str, text: str) -> str:
    """The grammar in llguidance's own notation. Raises ValueError."""
    if name == "json_schema":
        return LLMatcher.grammar_from_json_schema(
            json_schema.supported(text), defaults={"whitespace_pattern": WHITE_SPACE}
        )
    if name == "regex":
        if "\n" in text and VERBOSE.search(text):
            raise ValueError("with the flag x it must be written on one line")
        return grammar_from("regex", text)
    if len(text) > LONGEST_GRAMMAR:
        raise ValueError(f"it has {len(text):,} characters, and at most {LONGEST_GRAMMAR:,} are allowed")
    if TEMPERED.search(text):
        raise ValueError("a rule has no temperature of its own: give it as an option of the request")
    return grammar_from("lark", json_schema.supported_in_lark(gbnf.to_lark(text)))


def _with_deep_stack(compute: Callable[[], T]) -> T:
    """What `compute` returns or raises, from a thread that has a stack of STACK bytes."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(compute())
        except BaseException as error:
            outcome.set_exception(error)

    # An executor would refuse the work of a thread that goes on after the main thread has ended.
    thread = threading.Thread(target=run)
    with _sizing_stack:
        usual = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return outcome.result()


def _check_divisors(text: str) -> None:
    """Raises ValueError for `multipleOf` values whose automaton would have too many states."""
    together = 1
    for whole, fraction in DIVISOR.findall(text):
        digits = f"{whole}{fraction}".strip("0")  # a power of ten more or less makes no difference
        divisor = int(digits[:20] or 1)
        for factor in (2, 5):
            while divisor % factor == 0:
                divisor //= factor
        together = lcm(together, divisor)
        if together > MOST_REMAINDERS or len(digits) > 20:
            raise ValueError("the numbers of multipleOf are too large, or too many different ones")


def _impossible(name: str, text: str, reason: str) -> ImpossibleForm:
    told = _shortened(ONE_OF.sub(ONE_OF_TOLD, NOT_TOLD.sub("", reason)).strip())
    return ImpossibleForm(
        f"structured_output_config.{name}={_shortened(text)!r} is not possible: give {EXPECTED[name]}. ({told})", told
    )


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


class _Vocabulary:
    """The tokenizer as llguidance wants it.

    `end`, an additional id after all token ids, stands for the end of an answer, because requests differ in the tokens
    that end them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        read = TokenBytes.read(tokenizer)
        self.end = len(read.of)
        self.special = read.special
        self.tokenizer = LLTokenizer(TokenizerWrapper(_Encoding(tokenizer, read, self)))


class _Encoding:
    """How texts become tokens. llguidance keeps it, so it must not keep the vocabulary, which keeps llguidance: neither
    would ever be freed."""

    def __init__(self, tokenizer: Tokenizer, read: TokenBytes, vocabulary: _Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = weakref.proxy(vocabulary)
        self._end = vocabulary.end
        # These are the names that llguidance looks for.
        self.eos_token_id = vocabulary.end
        self.bos_token_id = None
        self.tokens = [*read.of, b"<end of the answer>"]
        self.special_token_ids = [*read.special, vocabulary.end]

    def __call__(self, data: str | bytes) -> list[int]:
        """The model's usual tokens for a piece of text inside another; only the first ones if it is long."""
        whole = data if isinstance(data, str) else data.decode()
        text = whole[:LONGEST_FORCED]
        ids = self._tokens(text)
        return ids if text == whole else ids[: max(1, len(ids) - AT_A_CUT)]

    def _tokens(self, text: str) -> list[int]:
        for anchor in ("", ANCHOR):  # some tokenizers put a space before the first token
            ids = self._tokenizer.encode(anchor + text, add_special_tokens=False)
            for first in range(min(len(ids), MOST_BEFORE) + 1):
                if b"".join(map(self._bytes_of, ids[first:])) == text.encode():
                    return ids[first:]
        greedy: list[int] = self._vocabulary.tokenizer.greedy_tokenize(text)
        return greedy

    def _bytes_of(self, token: int) -> bytes:
        return self.tokens[token] if token < self._end else b""
