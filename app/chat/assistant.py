"""The model of the page: loading it in the background, answering, replaying, racing, and stopping."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from outrider.models.pulled import pairs_folder
from outrider.pipelines import Generation, LLMPipeline, OutriderError, Span, Stream
from outrider.pipelines.model.pair import name_of

from ..reasoning import opening_of
from .core.conversation import CANCELLED, Conversation, Turn, messages
from .core.insight import Insight, insight_of
from .core.pairs import Choice, pairs_in
from .core.prefill_progress import PrefillProgress
from .core.race_state import RaceState
from .core.receipt import Receipt, first_difference
from .core.settings import Settings
from .core.time_saved import TimeSaved, time_saved_in
from .core.user_message import UserMessage

log = logging.getLogger(__name__)


class StillLoading(OutriderError):
    """A request to load a pair while another one is being loaded."""


class NotComparable(OutriderError):
    """An answer that cannot be replayed, such as one of another model."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of the model.

    name: "warming", "ready", "refused" (the last pair could not be loaded, the one before is ready) or "failed".
    line, values: the key and the fields of a phrase that describes it. began: by `time.monotonic`.
    """

    name: str
    line: str
    values: Mapping[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)


@dataclass(eq=False, slots=True)
class _Answering:
    """An answer that is being written, and the requests to end it. `stream` is None in plain mode."""

    visitor: str
    pipeline: LLMPipeline
    stream: Stream | None = None
    stopped: bool = False
    dropped: bool = False
    ended: threading.Event = field(default_factory=threading.Event)


class Assistant:
    """One pipeline at a time, shared by all visitors of the page.

    switches: how many times the pipeline has been replaced.
    """

    def __init__(
        self,
        pipeline: LLMPipeline,
        name: str,
        open_pair: Callable[[Path, str], LLMPipeline] = LLMPipeline,
        folder: Path | None = None,
        others: tuple[Path, ...] = (),
    ) -> None:
        """The pairs that can be chosen are those in `folder`, `others`, and the embedded one."""
        self.pipeline = pipeline
        self._opening = opening_of(pipeline.tokenizer)
        self.name = name
        self.switches = 0
        self._open_pair = open_pair
        self._folder = folder or pairs_folder()
        self._others = others
        self._refused: dict[tuple[Path, str], UserMessage] = {}  # why a pair could not be loaded on a device
        self.state = State("warming", "state_warming")
        self._insight = Insight()  # of the answers of this pipeline that have ended
        self._answering: set[_Answering] = set()
        self._num_begun = 0  # answers
        self._lock = threading.Lock()  # of _answering, _insight, _num_begun, and of switching
        self._warm_up_thread = threading.Thread(target=self._warm_up, args=(pipeline,), name="warm-up", daemon=True)

    @property
    def model(self) -> str:
        """The value of `Turn.model` in the answers of this pipeline."""
        return self.name if self.pipeline.device == "CPU" else f"{self.name} on {self.pipeline.device}"

    @property
    def insight(self) -> Insight:
        """The statistics of all answers of this pipeline except plain ones, including those that are being written."""
        with self._lock:
            open_now = [answering for answering in self._answering if answering.pipeline is self.pipeline]
            ended = self._insight
        return sum((insight_of(answering.stream.trace) for answering in open_now if answering.stream), ended)

    def warm_up_in_background(self) -> None:
        self._warm_up_thread.start()

    def choices(self) -> list[Choice]:
        """The pairs that can be chosen, and those that cannot be loaded, with the reason."""
        return pairs_in(self._folder, *self._others)

    @property
    def refusals(self) -> list[tuple[str, str, UserMessage]]:
        """Pair, device and reason of each failed attempt to load one that has not succeeded since."""
        return [(name_of(path), device, reason) for (path, device), reason in self._refused.items()]

    def switch(self, choice: Choice, device: str) -> None:
        """Load and warm up another pair in the background, and then answer with it.

        The previous pair answers until then, so both are in memory for a while, and stays if the other one cannot be
        loaded. Raises StillLoading.
        """
        with self._lock:
            if self._is_loading:
                raise StillLoading(f"{self.state.values.get('pair', self.name)} is still being loaded: wait for it.")
            self.state = State("warming", "state_loading", {"pair": choice.name, "device": device})
        self._warm_up_thread = threading.Thread(target=self._switch, args=(choice, device), name="switch", daemon=True)
        self._warm_up_thread.start()

    def close(self) -> None:
        """Drop all answers and wait for a warm-up to end: the process must not exit in the middle of a pass."""
        for visitor in {answering.visitor for answering in self._of()}:
            self.drop(visitor, patience_s=5)
        if self._warm_up_thread.is_alive():
            self._warm_up_thread.join()

    def answer(self, conversation: Conversation, settings: Settings, visitor: str) -> Iterator[PrefillProgress | Turn]:
        """Yield the progress of the prefill, then the last turn each time its answer has grown, until it is complete.

        `visitor` is the one to pass to `stop` and `drop`. Raises OutriderError for a request that cannot be served.
        """
        with self._lock:
            pipeline, opening = self.pipeline, self._opening
        turn = replace(conversation[-1], settings=settings, model=self.model)
        said = messages([*conversation[:-1], turn])
        with (
            self._registered(visitor, pipeline) as answering,
            pipeline.stream(said, **settings.options()) as pieces,
        ):
            answering.stream = None if settings.mode == "off" else pieces
            yield PrefillProgress(0, pieces.prompt_tokens)
            while not pieces.ended:
                piece = pieces.advance()
                if answering.dropped:
                    return
                if piece is not None:
                    if opening and piece.token_ids and not turn.token_ids:  # or reasoning would look like text
                        turn = replace(turn, spans=(Span(opening, "target"),))
                    turn = turn.extended(piece)
                    if turn.complete:
                        turn = replace(turn, time_saved=_time_saved(pipeline, pieces.finish(), settings))
                    yield turn
                elif not turn.token_ids:
                    yield PrefillProgress(pieces.read_tokens, pieces.prompt_tokens)
                if answering.stopped:
                    pieces.cancel()

    def replay(self, conversation: Conversation, visitor: str) -> Iterator[PrefillProgress | int | Receipt]:
        """Answer the last turn again without drafting. Yields the progress of the prefill, the number of tokens so far
        each time it has grown, and at the end the receipt, unless it was stopped.

        Raises OutriderError, such as NotComparable.
        """
        turn = conversation[-1]
        if turn.model != self.model:
            raise NotComparable(
                f"{turn.model or 'Another model'} wrote this answer, but {self.model} is loaded: load that pair first."
            )
        if "off" not in self.pipeline.modes:
            raise NotComparable(
                f"{self.model} drafts in every answer, as it was loaded with speculation={self.pipeline.modes[0]!r}: "
                "load it with speculation='off', or on the CPU, to compare."
            )
        if turn.stats is None or turn.stats.ttft_s is None:
            raise NotComparable("This answer has no token times to compare with: ask again first.")
        settings = replace(turn.settings, mode="off")
        if turn.finish_reason == CANCELLED:  # the replay would write more
            settings = replace(settings, max_new_tokens=len(turn.token_ids))
        asked = replace(turn, spans=(), token_ids=(), finish_reason=None, stats=None, time_saved=None, receipt=None)
        for again in self.answer((*conversation[:-1], asked), settings, visitor):
            if isinstance(again, PrefillProgress):
                yield again
            elif again.stats is None or again.stats.ttft_s is None:
                yield len(again.token_ids)
            elif again.finish_reason != CANCELLED:
                yield Receipt(
                    num_tokens=len(again.token_ids),
                    differs_at=first_difference(turn.token_ids, again.token_ids),
                    plain_s=again.stats.total_s - again.stats.ttft_s,
                    drafted_s=turn.stats.total_s - turn.stats.ttft_s,
                )

    def race(self, turn: Turn, settings: Settings, visitor: str) -> Iterator[RaceState]:
        """Answer the turn first in plain mode and then with `settings`, each time with an empty prompt cache.

        Ends early if it is stopped. Raises OutriderError.
        """
        lanes, disturbed = [turn, turn], False
        for lane, mode in enumerate(("off", settings.mode)):
            if self.pipeline.plans:
                self.pipeline.speculation.forget_prompts()
            num_begun = self._num_begun
            for seen in self.answer((turn,), replace(settings, mode=mode), visitor):
                beside = len(self._of()) > 1 or self._num_begun - num_begun > 1  # and those that ended
                disturbed |= beside or self._is_loading
                if isinstance(seen, Turn):
                    lanes[lane] = seen if lane == 0 else _measured_against(lanes[0], seen)
                yield RaceState(lanes[0], lanes[1], seen if isinstance(seen, PrefillProgress) else None, disturbed)
            if lanes[lane].finish_reason in (None, CANCELLED):
                return

    def count(self, conversation: Conversation) -> int | None:
        """The number of tokens of a conversation with the chat template; None for a model without a template."""
        tokenizer, said = self.pipeline.tokenizer, messages(conversation)
        if not said:
            return 0
        if not tokenizer.has_chat_template:
            return None
        return len(tokenizer.encode(tokenizer.apply_chat_template(said, False), add_special_tokens=False))

    def stop(self, visitor: str) -> bool:
        """Complete the visitor's answers as they are. Returns whether any were being written."""
        for answering in (now := self._of(visitor)):
            answering.stopped = True
        return bool(now)

    def drop(self, visitor: str, patience_s: float = 0) -> None:
        """Abort the visitor's answers, and wait up to `patience_s` seconds for the end of each."""
        for answering in self._of(visitor):
            answering.dropped = True
            answering.ended.wait(patience_s)

    @property
    def _is_loading(self) -> bool:
        return self.state.name == "warming"

    def _of(self, visitor: str | None = None) -> list[_Answering]:
        with self._lock:
            return [answering for answering in self._answering if visitor in (None, answering.visitor)]

    @contextmanager
    def _registered(self, visitor: str, pipeline: LLMPipeline) -> Iterator[_Answering]:
        answering = _Answering(visitor, pipeline)
        with self._lock:
            self._num_begun += 1
            self._answering.add(answering)
        try:
            yield answering
        finally:
            shown = insight_of(answering.stream.trace) if answering.stream else Insight()
            with self._lock:
                self._answering.discard(answering)
                if pipeline is self.pipeline:
                    self._insight += shown
            answering.ended.set()

    def _warm_up(self, pipeline: LLMPipeline) -> None:
        try:
            pipeline.warm_up()
        except Exception as error:  # the page shows any error
            log.exception("The model failed to start")
            self.state = State("failed", "state_failed", {"reason": UserMessage.of(error)})
            return
        self.state = _ready(pipeline)

    def _switch(self, choice: Choice, device: str) -> None:
        try:
            pipeline = self._open_pair(choice.path, device)
            self.state = State("warming", "state_warming_other", {"pair": choice.name, "device": device})
            pipeline.warm_up()
        except Exception as error:  # the page shows any error, and the previous pair stays
            if isinstance(error, OutriderError):
                log.warning("%s could not be loaded on %s: %s", choice.path, device, error)  # the page hides paths
            else:
                log.exception("%s could not be loaded on %s", choice.path, device)
            self._refused[choice.path, device] = reason = UserMessage.of(error)
            values = {"pair": choice.name, "device": device, "reason": reason}
            self.state = State("refused", "state_refused", values)
            return
        opening = opening_of(pipeline.tokenizer)
        with self._lock:
            self.pipeline, self.name, self._insight, self._opening = pipeline, choice.name, Insight(), opening
            self._refused.pop((choice.path, device), None)
            self.switches += 1
            self.state = _ready(pipeline)


def _time_saved(pipeline: LLMPipeline, generation: Generation, settings: Settings) -> TimeSaved | None:
    """The time that drafting saved; None in plain mode, or if the time of a plain pass is unknown."""
    is_known = settings.mode != "off" and pipeline.plans and not pipeline.has_fallen_back
    cost = pipeline.speculation.cost if is_known else None
    if cost is None:
        return None
    middle = generation.stats.prompt_tokens + len(generation.token_ids) // 2
    return time_saved_in(generation.trace, cost.pass_ms([(1, middle)]))


def _measured_against(plain: Turn, drafted: Turn) -> Turn:
    """The drafted turn, with its time saved based on the plain passes of the same race."""
    if drafted.time_saved is None or plain.stats is None or not plain.stats.tokens_per_s:
        return drafted
    return replace(drafted, time_saved=drafted.time_saved.at(1e3 / plain.stats.tokens_per_s))


def _ready(pipeline: LLMPipeline) -> State:
    if pipeline.draft_device != "CPU":
        return State("ready", "state_devices", {"device": pipeline.device, "draft": pipeline.draft_device})
    if pipeline.device != "CPU":  # the page explains what that means
        return State("ready", "state_device", {"device": pipeline.device})
    return State("ready", "state_ready" if pipeline.exact else "state_inexact")
