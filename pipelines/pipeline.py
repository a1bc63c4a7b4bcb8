"""LLMPipeline: the one class that an embedding program needs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import openvino_genai

from .backend import Backend
from .block_pool import BlockPool
from .calibration import Calibration
from .config import AUTO, GenerationConfig
from .cost import CONTEXTS, CostModel, Run
from .devices import CPU, check_device, load
from .drafters import draft_model, retrieval, suffix
from .drafters.base import Chain, Drafter
from .drafters.draft_model import DraftModel
from .drafters.prompt_lookup import PromptLookup
from .drafters.retrieval import Retrieval
from .drafters.suffix import Suffix
from .drafting import Drafting
from .engine import FEWEST_ROWS, Engine
from .errors import InvalidOption, PromptTooLong, UnsupportedDevice
from .exactness import is_exact
from .genai_engine import GenaiEngine
from .paged_model import BLOCK_SIZE, PagedModel, Window
from .pair import Pair, context_length
from .planner import LONGEST, Planner
from .profile import cache_folder, measured_cost, profile_path
from .prompt import Inputs, Message, Prompt, encode_prompt, prompts_of
from .reference import Reference
from .results import DecodedResults, DecodedText
from .sequence import Sequence
from .stream import Stream
from .text import TextStream, Tokenizer
from .vocabulary import check_same_vocabulary

log = logging.getLogger(__name__)

Config: TypeAlias = GenerationConfig | openvino_genai.GenerationConfig
Streamer: TypeAlias = Callable[[str], "bool | openvino_genai.StreamingStatus | None"] | openvino_genai.StreamerBase

CACHE_TOKENS = 16384  # of the CPU's engine, unless told otherwise
EXACTNESS_TOKENS = 80
MEASURED_TOKENS = CONTEXTS[-1] + LONGEST + 1
WARM_UP = {"max_new_tokens": 8, "ignore_eos": True, "apply_chat_template": False, "do_sample": False}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the models' weights and of the key-value cache, which holds `cache_tokens` tokens."""

    weights: int
    cache: int
    cache_tokens: int


class LLMPipeline:
    """A pair of models, loaded and ready to write.

    `models_path` is a pair folder or a bare IR folder; `cache_tokens` is how many tokens, of all requests together, the
    key-value cache holds; `exact=False` gives up the promise of the same text for the last percent of speed (see
    `Engine`); `reference` is a folder of text files that answers may quote, of which an index is kept in the user's
    cache folder; further keywords are OpenVINO properties for the target. Calls from several threads are served
    together.

    On a `device` other than the CPU ("GPU", "GPU.1", "NPU") OpenVINO GenAI's pipeline decodes. There `exact` is False
    and `modes` is ("off",): nothing is drafted, in mode "auto" either, and the same seed may give another text (see
    `GenaiEngine`). Requests are served one after the other. `exact=False` makes GenAI keep what it computed, so that
    the next turn of a chat begins sooner and its text depends on what was asked before. Without `cache_tokens` the
    cache grows as needed; an NPU takes the properties MAX_PROMPT_LEN and MIN_RESPONSE_LEN instead.

    Raises BrokenPair, UnsupportedModel, UnsupportedDevice, VocabularyMismatch, InvalidOption.
    """

    def __init__(
        self,
        models_path: str | Path,
        device: str = "CPU",
        *,
        cache_tokens: int | None = None,
        exact: bool = True,
        reference: str | Path | None = None,
        **properties: Any,
    ) -> None:
        check_device(device)
        if cache_tokens is not None and cache_tokens < 2:
            raise InvalidOption(f"cache_tokens={cache_tokens} is not possible: give a whole number from 2 up.")
        self.pair = Pair.open(models_path)
        self.tokenizer = Tokenizer(self.pair.target)
        self.device = device
        self.max_context = self.pair.max_context
        config = GenerationConfig.from_folder(self.pair.target)
        eos = self.tokenizer.eos_token_id
        self._config = config if eos is None else config.updated({"eos_token_ids": config.eos_token_ids | {eos}})
        self._history: list[Message] | None = None  # of the chat that is on
        self._engine: Backend
        self.modes: tuple[str, ...]
        if device != CPU:
            if reference is not None:
                raise InvalidOption(
                    f"reference={str(reference)!r} is of no use on {device}, where nothing is drafted: leave it out, "
                    "or load the pair with device='CPU'."
                )
            genai, room = load(self.pair.target, device, self.max_context, cache_tokens, exact, properties)
            self.exact = False
            self.modes = ("off",)
            self._cache_tokens = room.tokens
            self._engine = GenaiEngine(genai, room)
            return
        self.exact = exact
        num_blocks = -(-(cache_tokens or CACHE_TOKENS) // BLOCK_SIZE)
        self._cache_tokens = num_blocks * BLOCK_SIZE
        self._pool = BlockPool(num_blocks, BLOCK_SIZE)
        self._draft_pool = BlockPool(num_blocks, BLOCK_SIZE)
        self._target = PagedModel(self.pair.target, num_blocks, properties)
        self._draft: PagedModel | None = None
        calibration = Calibration({**suffix.PRIORS, **retrieval.PRIORS, **draft_model.PRIORS})
        copying: tuple[Drafter, ...] = (Suffix(calibration),)
        if reference is not None:
            copying = (*copying, Retrieval(self._open_reference(Path(reference).expanduser())))
        modes = {"off": Chain(), "lookup": Chain((PromptLookup(),)), "suffix": Chain(copying)}
        if self.pair.draft is not None:
            check_same_vocabulary(
                self.tokenizer.vocabulary,
                Tokenizer(self.pair.draft).vocabulary,
                f"{self.pair.target} and {self.pair.draft}",
            )
            self._draft = PagedModel(self.pair.draft, num_blocks)
            writing = DraftModel(self._draft, self._draft_pool, context_length(self.pair.draft))
            modes |= {"draft": Chain(model=writing), "chained": Chain(copying, writing)}
        modes[AUTO] = modes.get("chained", modes["suffix"])
        self.modes = tuple(modes)
        self._planner = Planner(Drafting(modes, calibration, self._target.vocabulary_size), calibration)
        self._engine = Engine(self._target, self._pool, self._planner, exact)
        self._fewest_rows = FEWEST_ROWS if exact else 1
        self._profile = profile_path(self.pair, device, properties)
        self._is_measured = False

    def warm_up(self) -> None:
        """Run the first passes, which pack the weights and can take seconds, check the promise on this device and, once
        for each pair and machine, measure what passes cost.

        Where the check fails, `exact` becomes False and a warning tells. Safe to call from a thread of its own.
        """
        room = min(self.max_context, self._cache_tokens)
        if self.exact and isinstance(self._engine, Engine):
            num_tokens = min(EXACTNESS_TOKENS, room)
            with self._engine.borrowed(self._pool, num_tokens) as blocks:
                self.exact = is_exact(self._target, blocks, num_tokens)
            if not self.exact:
                log.warning(
                    "On this device, with these properties, logits depend on how tokens are cut into passes: the "
                    "same seed may give another text in another mode."
                )
        self._measure()
        for mode in self.modes:
            options = {**WARM_UP, "mode": mode, "num_assistant_tokens": 2}
            self._open("def " * min(40, room // 8), self._config.updated(options)).finish()

    @property
    def cost(self) -> CostModel | None:
        """What passes cost on this machine; None before it was measured, or where it cannot be."""
        return self._planner.cost if self.device == CPU else None

    def forget_cost(self) -> None:
        """Measure what passes cost anew, next time that it is asked for."""
        if self.device != CPU:
            return
        self._profile.unlink(missing_ok=True)
        self._planner.cost, self._is_measured = None, False

    @property
    def num_threads(self) -> int:
        """Of the processor. Raises UnsupportedDevice elsewhere."""
        self._needs_cpu("The number of threads")
        return self._target.num_threads

    @property
    def memory(self) -> Memory:
        """What both models take. Raises UnsupportedDevice where OpenVINO GenAI holds them, who does not tell."""
        self._needs_cpu("The memory that a pair takes")
        models = [model for model in (self._target, self._draft) if model is not None]
        return Memory(
            weights=sum(model.weight_bytes for model in models),
            cache=sum(model.cache_bytes for model in models),
            cache_tokens=self._pool.num_blocks * BLOCK_SIZE,
        )

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def get_generation_config(self) -> GenerationConfig:
        return self._config

    def set_generation_config(self, config: Config) -> None:
        self._config = self._with_eos(config)

    def generate(
        self,
        inputs: Inputs,
        generation_config: Config | None = None,
        streamer: Streamer | None = None,
        **options: Any,
    ) -> DecodedResults | DecodedText:
        """Answer a prompt, several prompts at once, or a conversation of messages with "role" and "content".

        A prompt is put into the model's chat template, where it has one, unless `apply_chat_template=False`. `streamer`
        is called with each piece of text (an `openvino_genai.StreamerBase` with each piece's token ids); True or a
        status other than RUNNING stops the answer. `options` override the configuration for this call. The answer to a
        string is a string; both kinds of result have `texts`, `stats` and `generations`.

        Raises EmptyPrompt, PromptTooLong, CacheTooSmall, UnknownOption, InvalidOption.
        """
        config = self._configured(generation_config, options)
        prompts = prompts_of(inputs)
        if len(prompts) > 1 and self._history is not None:
            raise InvalidOption("A chat takes one message at a time: call finish_chat() before a list of prompts.")
        if streamer is not None and len(prompts) * config.num_return_sequences > 1:
            raise InvalidOption("A streamer can follow one answer only: give one prompt and num_return_sequences=1.")
        with ExitStack() as opened:
            streams = [
                opened.enter_context(self._open(prompt, config, answer))
                for prompt in prompts
                for answer in range(config.num_return_sequences)
            ]
            if streamer is not None:
                _feed(streams[0], streamer)
            generations = tuple(stream.finish() for stream in streams)
        if isinstance(inputs, str) and len(generations) == 1:
            return DecodedText(generations[0])
        return DecodedResults(generations)

    def stream(self, inputs: Inputs, generation_config: Config | None = None, **options: Any) -> Stream:
        """Answer one prompt or conversation piece by piece; inputs, options and errors are those of `generate`."""
        config = self._configured(generation_config, options)
        prompts = prompts_of(inputs)
        if len(prompts) * config.num_return_sequences > 1:
            raise InvalidOption("stream() follows one answer: give one prompt and num_return_sequences=1.")
        return self._open(prompts[0], config)

    def start_chat(self, system_message: str = "") -> None:
        """From now on each prompt is a message of one conversation, and its answer is remembered."""
        self._history = [{"role": "system", "content": system_message}] if system_message else []

    def finish_chat(self) -> None:
        self._history = None

    def _needs_cpu(self, what: str) -> None:
        if self.device != CPU:
            raise UnsupportedDevice(f"{what} is known on the CPU only, and this pair runs on {self.device}.")

    def _open_reference(self, folder: Path) -> Reference:
        vocabulary = hashlib.sha256((self.pair.target / "openvino_tokenizer.bin").read_bytes()).hexdigest()
        return Reference.of(folder, cache_folder(), vocabulary, lambda text: self.tokenizer.encode(text, False))

    def _measure(self) -> None:
        """Learn once what passes cost here, which the planner goes by."""
        engine = self._engine
        if not isinstance(engine, Engine) or self._is_measured:
            return
        self._is_measured = True
        room = min(MEASURED_TOKENS, self.max_context, self._cache_tokens)

        def measure() -> CostModel:
            with (
                engine.borrowed(self._pool, room) as blocks,
                engine.borrowed(self._draft_pool, room) as draft_blocks,
            ):
                draft = None if self._draft is None else _passes(self._draft, draft_blocks)
                return CostModel.measure(_passes(self._target, blocks), draft, room, self._fewest_rows)

        self._planner.cost = measured_cost(self._profile, measure)

    def _with_eos(self, config: Config) -> GenerationConfig:
        if isinstance(config, openvino_genai.GenerationConfig):
            config = GenerationConfig.from_genai(config)
        return config if config.eos_token_ids else config.updated({"eos_token_ids": self._config.eos_token_ids})

    def _configured(self, config: Config | None, options: Mapping[str, Any]) -> GenerationConfig:
        chosen = (self._config if config is None else self._with_eos(config)).updated(options)
        if self.device != CPU and chosen.mode == AUTO:  # nobody is there to draft
            return chosen.updated({"mode": "off"})
        if self.device != CPU and chosen.mode not in self.modes:
            raise InvalidOption(
                f"mode={chosen.mode!r} is not possible on {self.device}, where nothing is drafted: leave it out, or "
                "load the pair with device='CPU'."
            )
        if chosen.mode not in self.modes:
            raise InvalidOption(
                f"mode={chosen.mode!r} needs a draft model, and {self.pair.path} has none: choose one of "
                f"{', '.join(map(repr, self.modes))}, or export the pair with --draft."
            )
        return chosen

    def _open(self, prompt: Prompt, config: GenerationConfig, answer: int = 0) -> Stream:
        history = self._history
        tokens = encode_prompt(prompt, history, self.tokenizer, config.apply_chat_template)
        text = TextStream(self.tokenizer, config.stop_strings, config.include_stop_str_in_output)
        sequence = Sequence(tokens, config, self._room(len(tokens), config), text, answer)
        if config.num_assistant_tokens is None and config.mode != "off":
            self._measure()

        def remember(written: str) -> None:
            if history is not None and isinstance(prompt, str) and config.apply_chat_template and answer == 0:
                history.extend([{"role": "user", "content": prompt}, {"role": "assistant", "content": written}])

        return Stream(self._engine, sequence, text, remember)

    def _room(self, num_prompt_tokens: int, config: GenerationConfig) -> int:
        """How many tokens the answer can have."""
        context = self.max_context - num_prompt_tokens
        if context < 1:
            raise PromptTooLong(
                f"The prompt has {num_prompt_tokens} tokens and the model's context holds {self.max_context}, answer "
                "included: shorten the prompt."
            )
        if config.max_new_tokens is not None:
            return min(context, config.max_new_tokens)
        if config.max_length is not None:
            if config.max_length <= num_prompt_tokens:
                raise InvalidOption(
                    f"max_length={config.max_length} leaves no room behind a prompt of {num_prompt_tokens} tokens: "
                    "raise it, or set max_new_tokens."
                )
            return min(context, config.max_length - num_prompt_tokens)
        return max(1, min(context, self._cache_tokens - num_prompt_tokens))  # `add` refuses what cannot run


def _passes(model: PagedModel, blocks: list[int]) -> Run:
    """Passes over whatever the blocks hold: what they take depends on their shape alone."""
    return lambda rows, context: model.forward([Window([0] * rows, context, blocks, num_rows=rows)])


def _feed(stream: Stream, streamer: Streamer) -> None:
    for piece in stream:
        if isinstance(streamer, openvino_genai.StreamerBase):
            answer: Any = streamer.write(list(piece.token_ids))
        else:
            answer = streamer(piece.text)
        if answer is True or (isinstance(answer, openvino_genai.StreamingStatus) and answer.value != 0):
            stream.cancel()
    if isinstance(streamer, openvino_genai.StreamerBase):
        streamer.end()
