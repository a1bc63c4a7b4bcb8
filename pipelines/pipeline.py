"""LLMPipeline: the one class that an embedding program needs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import openvino_genai

from .capabilities import Capabilities
from .config import AUTO, GenerationConfig
from .devices.devices import CPU, OUTRIDER, check_device, check_types, engine_of, given_properties
from .devices.fallback import Fallback
from .devices.genai_engine import GenaiEngine
from .devices.genai_loading import GenaiLoading
from .devices.spare import Spare
from .engine.backend import Backend
from .engine.request import Request
from .errors import DeviceFailed, InvalidOption, UnsupportedDevice
from .model.pair import Pair
from .results import DecodedResults, DecodedText
from .speculation.loaded_target import CACHE_TOKENS
from .speculation.runtime import Runtime
from .stream import Stream
from .streamer import Streamer, WholeTokens, check_streamer, feed
from .structured.grammars import Grammars
from .text.prompt import Inputs, Message, Prompt, encode_prompt, num_earlier_tokens, prompts_of
from .text.tokenizer import TextStream, Tokenizer

log = logging.getLogger(__name__)

Config: TypeAlias = GenerationConfig | openvino_genai.GenerationConfig | Mapping[str, Any]

WARM_UP: dict[str, Any] = {"max_new_tokens": 8, "apply_chat_template": False}
WARM_UP_DRAFT = 2  # tokens
WARM_UP_S = 2.0  # for answers in one mode after the other, the piece in which it ends included


class LLMPipeline:
    """A pair of models, loaded and ready to generate. Calls from several threads are served together.

    models_path: a pair folder, or a bare IR folder.
    device: "CPU", or another device of OpenVINO, see below.
    cache_tokens: capacity of the key-value cache in tokens, shared by all requests.
    exact: whether the same seed gives the same text in every mode. None: if that makes a pass at most a tenth longer on
        this machine; True: at any price; False: never. Otherwise text is lossless in distribution. The outcome is
        `pipeline.exact`; it is saved in the user's cache folder, so that it does not change from run to run.
    reference: a folder of text files that answers may quote; its index is saved in the user's cache folder.
    head: the folder of an exported head, to draft with in place of the pair's own.
    properties: OpenVINO properties of the target. Those whose names begin with NPU are for the models on an NPU.
    config: more properties, in a dictionary.

    On an NPU requests are served one after the other, by the same engine, with all modes but "head", "skip" and "exit".
    `exact` is what a check finds when the pair is first loaded there. In place of `cache_tokens` it has the properties
    MAX_PROMPT_LEN (1024 unless given) and MIN_RESPONSE_LEN (128), the most tokens of a prompt and the room after it,
    and it takes symmetric int4 weights (see `NpuModel`).

    On a GPU ("GPU", "GPU.1") OpenVINO GenAI decodes, one request after the other, and drafts as `speculation` says for
    all of them: "lookup" (prompt lookup), "draft" (the draft model, on `draft_device`, for greedy answers), "off", or
    "auto", the faster of "lookup" and "off", which is tried when the pair is first loaded. `modes` are what was chosen
    and "auto", `exact` is False, and the same seed may give another text (see `GenaiEngine`). `logprobs`, `logit_bias`,
    `presence_penalty`, `frequency_penalty` and `structured_output_config` are refused, as is `min_new_tokens` except
    with "off". With `exact=False` GenAI keeps computed prompts, so that the next turn of a chat begins sooner, but its
    text depends on earlier requests. Without `cache_tokens` the cache grows as needed.

    With engine="outrider" our own engine decodes on a GPU, too, with the modes of an NPU and all options, and plans
    drafts by what passes cost there (see `GpuPagedModel`). `exact` has the same meaning as on the CPU, except that an
    answer with its prompt counts, not a pass, since exact passes read prompts 16 tokens at a time.

    The draft model runs on `draft_device`, wherever the target is. On an NPU it takes symmetric int4 weights as well,
    and drafts for one request at a time, from the last 256 tokens of long texts; meanwhile other requests get drafts
    from texts only. If it is measured to lose time on its device, a warning says so. A request on which a device fails
    ends with DeviceFailed, and the next one is tried there; with fallback="CPU" it continues on the CPU, as do all
    later ones. If only the draft model's device fails, an answer continues without it.

    Raises BrokenPair, UnsupportedModel, UnsupportedDevice, VocabularyMismatch, InvalidOption.
    """

    def __init__(
        self,
        models_path: str | Path,
        device: str = "CPU",
        config: Mapping[str, Any] | None = None,
        *,
        cache_tokens: int | None = None,
        exact: bool | None = None,
        reference: str | Path | None = None,
        engine: str | None = None,
        speculation: str | None = None,
        draft_device: str = CPU,
        fallback: str | None = None,
        head: str | Path | None = None,
        **properties: Any,
    ) -> None:
        check_types((device, draft_device), config)
        if head is not None and device != CPU:
            raise InvalidOption(f"head={str(head)!r} drafts for a target on the CPU: leave it out on {device}.")
        properties = given_properties(config, properties)
        check_device(device, properties)
        check_device(draft_device, properties)
        decoding = engine_of(device, engine, speculation, properties)
        if fallback is not None and (fallback != CPU or device == CPU):
            raise InvalidOption(
                f"fallback={fallback!r} is not possible: give 'CPU' on another device, and leave it out on the CPU."
            )
        if cache_tokens is not None and not (type(cache_tokens) is int and cache_tokens >= 2):
            raise InvalidOption(f"cache_tokens={cache_tokens!r} is not possible: give a whole number from 2 up.")
        self.pair = Pair.open(models_path) if head is None else Pair.open(models_path).with_head(head)
        self.tokenizer = Tokenizer(self.pair.target)
        self._grammars = Grammars(self.tokenizer)
        self.device, self.draft_device = device, draft_device
        self.max_context = self.pair.max_context
        own = GenerationConfig.from_folder(self.pair.target)
        eos = self.tokenizer.eos_token_id
        self._config = own if eos is None else own.updated({"eos_token_ids": own.eos_token_ids | {eos}})
        self._history: list[Message] | None = None  # of the current chat
        self._engine: Backend
        self._speculation: Runtime | None = None
        self._spare: Spare | None = None
        self._modes: tuple[str, ...]
        folder = None if reference is None else Path(reference).expanduser().absolute()
        if decoding == OUTRIDER:
            self._speculation = Runtime(
                self.pair, self.tokenizer, device, draft_device, cache_tokens, exact, folder, properties
            )
            self._engine = self._speculation.engine
            cache_size = self._speculation.cache_tokens
            self._modes = self._speculation.modes
        else:
            self._engine, cache_size = self._with_genai(
                cache_tokens, exact, reference, speculation, draft_device, properties
            )
        if fallback is not None:
            self._spare = Spare(self.pair, self.tokenizer, cache_tokens, exact, folder, self._speculation)
            self._speculation = None  # the spare has it, and lets it go
            self._engine = Fallback(self._engine, self._spare)
            cache_size = min(cache_size, cache_tokens or CACHE_TOKENS)  # what the CPU has room for
        self._capabilities = Capabilities(
            self.pair.path,
            self.tokenizer,
            device,
            self._modes,
            self.plans,
            self.max_context,
            cache_size,
            self._config,
        )

    def _with_genai(
        self,
        cache_tokens: int | None,
        exact: bool | None,
        reference: str | Path | None,
        speculation: str | None,
        draft_device: str,
        properties: Mapping[str, Any],
    ) -> tuple[Backend, int]:
        """OpenVINO GenAI's engine, and the tokens that its cache holds."""
        if reference is not None:
            raise InvalidOption(
                f"reference={str(reference)!r} has no effect on {self.device}, where OpenVINO GenAI drafts: leave it "
                "out, or load the pair with engine='outrider', or with device='CPU'."
            )
        if exact:
            log.warning("OpenVINO GenAI cannot promise the same text for the same seed on %s.", self.device)
        loading = GenaiLoading(
            self.pair, self.device, cache_tokens, exact is not False, speculation or AUTO, draft_device, properties
        )
        genai, chosen = loading.load()
        self._modes = ("off",) if chosen == "off" else (chosen, AUTO)
        engine = GenaiEngine(genai, loading.room, self.tokenizer.vocabulary_size, chosen)
        return engine, loading.room.tokens

    @property
    def _runtime(self) -> Runtime | None:
        """What drafts now; None where OpenVINO GenAI decodes."""
        return self._speculation if self._spare is None else self._spare.runtime

    @property
    def exact(self) -> bool:
        """Whether the same seed gives the same text in every mode; checked when the pair is first loaded. Once the CPU
        has taken over, whether it does there."""
        return self._runtime is not None and self._runtime.exact

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that can be asked for; once the CPU has taken over, those that it has."""
        return self._modes if self._runtime is None else self._runtime.modes

    @property
    def longest_text(self) -> int:
        """The most tokens that a prompt and its answer can have together: as many as the model was made for, and as the
        cache holds."""
        return min(self.max_context, self._able.cache_tokens)

    @property
    def _able(self) -> Capabilities:
        """What can be asked for now."""
        if not self.has_fallen_back or self._runtime is None:
            return self._capabilities
        tokens = self._runtime.cache_tokens
        return replace(self._capabilities, device=CPU, modes=self.modes, plans=True, cache_tokens=tokens)

    @property
    def plans(self) -> bool:
        """Whether Outrider's own engine decodes, which measures what drafts cost and plans them; else GenAI does."""
        return self._runtime is not None

    @property
    def speculation(self) -> Runtime:
        """The engine, its cost model and what drafting needs. Raises UnsupportedDevice where OpenVINO GenAI decodes."""
        if self._runtime is None:
            raise UnsupportedDevice(
                f"OpenVINO GenAI decodes on {self.device}, and tells no costs: load the pair with "
                "engine='outrider', or on the CPU."
            )
        return self._runtime

    @property
    def has_fallen_back(self) -> bool:
        """Whether the device has failed, and the CPU answers in its place."""
        return isinstance(self._engine, Fallback) and self._engine.has_failed

    @property
    def backend(self) -> Backend:
        """What runs the requests. A server can call its `step` in a thread of its own."""
        return self._engine

    def warm_up(self) -> None:
        """Run the first passes, which pack weights, compile kernels and can take seconds, and measure what passes cost
        if that was not done before on this machine. With a slow model not every mode is run, as its kernels compile in
        a small part of a pass. Can be called in a thread of its own.
        """
        if self._runtime is not None and not self.has_fallen_back:
            with self._failing_over():
                self._runtime.prepare()
        self._measure()
        room = self.longest_text
        if self._runtime is not None:
            room = min(room, self._runtime.compilation.rows.whole_prompt or room)
        length = max(1, min(40, room // 8))
        until = time.perf_counter() + WARM_UP_S
        for mode in self.modes:
            drafted = None if mode == "off" else WARM_UP_DRAFT
            config = GenerationConfig(**WARM_UP, mode=mode, num_assistant_tokens=drafted)
            (stream,) = self._open("def " * length, config, None)
            with closing(stream):
                for _ in stream:
                    if time.perf_counter() > until:
                        return

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

        inputs: strings or lists of token ids. A string is put into the model's chat template, if it has one, unless
            `apply_chat_template=False`, which messages do not allow; token ids are used unchanged.
        generation_config: a configuration, or a dictionary of options that change the pipeline's.
        streamer: called with each piece of text (an `openvino_genai.StreamerBase` with the token ids). True, a number
            other than 0 or a status other than RUNNING stops the answer: the streamer is not called again, the result
            includes text that had been held back, its finish reason is "cancelled", and after CANCEL a chat forgets
            the turn.
        options: override the configuration for this call.

        The answer to a single string is a string; all results have `texts`, `stats` and `generations`.

        Raises EmptyPrompt, UnknownToken, PromptTooLong, CacheTooSmall, UnknownOption, InvalidOption; and, while it
        answers, DeviceFailed and BrokenLogits.
        """
        config = self._configured(generation_config, options)
        prompts = self._prompts(inputs)
        if streamer is not None:
            check_streamer(streamer)
        if streamer is not None and len(prompts) * config.num_return_sequences > 1:
            raise InvalidOption("A streamer can follow one answer only: give one prompt and num_return_sequences=1.")
        history, known = self._history, len(self._history or ())
        with ExitStack() as opened:
            streams = [
                opened.enter_context(stream) for prompt in prompts for stream in self._open(prompt, config, history)
            ]
            whole = WholeTokens(self.tokenizer, config.include_stop_str_in_output) if config.stop_strings else None
            forget = streamer is not None and feed(streams[0], streamer, whole)
            generations = tuple(stream.finish() for stream in streams)
            if forget and history is not None:
                del history[known:]
        if isinstance(inputs, str) and len(generations) == 1:
            return DecodedText(generations[0])
        return DecodedResults(generations)

    def stream(self, inputs: Inputs, generation_config: Config | None = None, **options: Any) -> Stream:
        """Answer one prompt or conversation piece by piece; inputs, options and errors are those of `generate`."""
        config = self._configured(generation_config, options)
        prompts = self._prompts(inputs)
        if len(prompts) * config.num_return_sequences > 1:
            raise InvalidOption("stream() follows one answer: give one prompt and num_return_sequences=1.")
        (stream,) = self._open(prompts[0], config, self._history)
        return stream

    def streams(self, inputs: Inputs, generation_config: Config | None = None, **options: Any) -> list[Stream]:
        """Begin all answers of a call to `generate`, in its order. They share passes, whichever of them is iterated.

        After `warm_up` this runs nothing and waits for nothing.
        """
        config = self._configured(generation_config, options)
        history = self._history
        with ExitStack() as opened:  # if a prompt is refused, the streams of those before it are closed
            prompts = self._prompts(inputs)
            streams = [opened.enter_context(each) for prompt in prompts for each in self._open(prompt, config, history)]
            opened.pop_all()
        return streams

    def start_chat(self, system_message: str = "") -> None:
        """Begin a conversation: from now on each prompt must be a string, its next message, and answers are kept."""
        self._history = [{"role": "system", "content": system_message}] if system_message else []

    def finish_chat(self) -> None:
        self._history = None

    def _with_eos(self, config: Config) -> GenerationConfig:
        if isinstance(config, openvino_genai.GenerationConfig):
            config = GenerationConfig.from_genai(config)
        elif isinstance(config, Mapping):
            config = self._config.updated(config)
        elif not isinstance(config, GenerationConfig):
            raise InvalidOption(f"generation_config={config!r} is no configuration: give a GenerationConfig.")
        return config if config.eos_token_ids else config.updated({"eos_token_ids": self._config.eos_token_ids})

    def _configured(self, config: Config | None, options: Mapping[str, Any]) -> GenerationConfig:
        chosen = (self._config if config is None else self._with_eos(config)).updated(options)
        return self._able.checked(chosen)

    def _measure(self) -> None:
        """Learn what passes cost, if that is not known; the CPU that takes over from a device has done so."""
        if self._runtime is not None and not self.has_fallen_back:
            with self._failing_over():
                self._runtime.measure()

    @contextmanager
    def _failing_over(self) -> Iterator[None]:
        """If there is a fallback, a device's failure outside of requests is only logged."""
        try:
            yield
        except DeviceFailed as error:
            if not isinstance(self._engine, Fallback):
                raise
            log.warning("%s", error)

    def _prompts(self, inputs: Inputs) -> list[Prompt]:
        prompts = prompts_of(inputs)
        if len(prompts) > 1 and self._history is not None:
            raise InvalidOption("A chat takes one message at a time: call finish_chat() before a list of prompts.")
        return prompts

    def _open(self, prompt: Prompt, config: GenerationConfig, history: list[Message] | None) -> Iterator[Stream]:
        """Begin each answer to a prompt, which is encoded once."""
        tokens = encode_prompt(prompt, history, self.tokenizer, config.apply_chat_template)
        constraint, num_earlier = self._grammars.constraint(config), 0
        if config.mode != "off":
            num_earlier = num_earlier_tokens(prompt, history, self.tokenizer, config.apply_chat_template, tokens)
        room = self._able.room(len(tokens), config)
        if config.num_assistant_tokens is None and config.mode != "off":
            self._measure()

        def remember(written: str) -> None:
            if history is not None and isinstance(prompt, str):
                history.extend([{"role": "user", "content": prompt}, {"role": "assistant", "content": written}])

        for answer in range(config.num_return_sequences):
            text = TextStream(self.tokenizer, config.stop_strings, config.include_stop_str_in_output)
            form = None if constraint is None else constraint.copy()
            request = Request(tokens, config, room, text, answer, form, num_earlier)
            yield Stream(self._engine, request, text, remember if answer == 0 else lambda written: None)
