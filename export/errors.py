"""What only an export refuses. Each message says what was wrong, the value, and what to do."""

from outrider.pipelines.errors import OutriderError


class ExportError(OutriderError):
    """The base of what only an export can raise."""


class MissingExtra(ExportError):
    """The packages of the [export] extra are not installed."""


class NotADecoder(ExportError):
    """A checkpoint that is not a decoder language model."""


class ConversionFailed(ExportError):
    """The converter or the compressor gave up on a checkpoint that it should know."""


class TokenizerNotConverted(ExportError):
    """A tokenizer that is missing, or that OpenVINO Tokenizers cannot express."""


class RoundTripFailed(ExportError):
    """The exported pair generated other tokens with speculation than without."""
