"""Run a pair of language models with OpenVINO: `LLMPipeline` and the values that it takes and gives."""

from .privacy import take_silence_for_no

take_silence_for_no()  # before the lines below import openvino, which would report that to its makers

from .config import ACCEPTANCES, AUTO, EXACT, MODES, GenerationConfig
from .engine.logprobs import TokenLogprobs
from .engine.trace import Statistics
from .errors import (
    BrokenLogits,
    BrokenPair,
    CacheTooSmall,
    DeviceFailed,
    EmptyPrompt,
    ImpossibleForm,
    InvalidOption,
    OutriderError,
    PromptTooLong,
    UnknownOption,
    UnknownToken,
    UnsupportedDevice,
    UnsupportedModel,
    VocabularyMismatch,
)
from .model.pair import Pair
from .pipeline import LLMPipeline
from .results import DecodedResults, DecodedText, Generation, Piece
from .stream import Stream
from .structured.structured_output import StructuredOutputConfig
from .text.tokenizer import Span, Tokenizer

__all__ = [
    "ACCEPTANCES",
    "AUTO",
    "EXACT",
    "MODES",
    "BrokenLogits",
    "BrokenPair",
    "CacheTooSmall",
    "DecodedResults",
    "DecodedText",
    "DeviceFailed",
    "EmptyPrompt",
    "Generation",
    "GenerationConfig",
    "ImpossibleForm",
    "InvalidOption",
    "LLMPipeline",
    "OutriderError",
    "Pair",
    "Piece",
    "PromptTooLong",
    "Span",
    "Statistics",
    "Stream",
    "StructuredOutputConfig",
    "TokenLogprobs",
    "Tokenizer",
    "UnknownOption",
    "UnknownToken",
    "UnsupportedDevice",
    "UnsupportedModel",
    "VocabularyMismatch",
]
