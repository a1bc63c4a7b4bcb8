"""Errors of exports. Each message names the problem, the value and a remedy."""

from outrider.pipelines.errors import OutriderError


class ExportError(OutriderError):
    """Base class of the errors that only exports raise."""


class MissingExtra(ExportError):
    """The packages of the [export] extra are not installed."""


class NotADecoder(ExportError):
    """A checkpoint that is not a decoder language model."""


class ConversionFailed(ExportError):
    """The converter or compressor failed on a checkpoint of a supported architecture."""


class TokenizerNotConverted(ExportError):
    """A tokenizer that is missing, or that OpenVINO Tokenizers cannot convert."""


class RoundTripFailed(ExportError):
    """The exported pair generated different tokens with speculation than without."""


class DeviceCheckFailed(ExportError):
    """The exported target does not run on its device, or computes something else there than on the CPU."""
