"""Why an export was refused. Each message says what was wrong, the value, and what to do."""

from outrider.pipelines.errors import OutriderError


class ExportError(OutriderError):
    """The base of what only an export can raise."""


class MissingExtra(ExportError):
    """The packages of the [export] extra are not installed."""


class NoSuchModel(ExportError):
    """Neither a folder with a checkpoint nor a model of the hub."""


class HubUnreachable(ExportError):
    """A model named by its hub id, with no way to the hub and nothing in its local cache."""


class NotADecoder(ExportError):
    """A checkpoint that is not a decoder language model."""


class ConversionFailed(ExportError):
    """The converter or the compressor gave up on a checkpoint that it should know."""


class TokenizerNotConverted(ExportError):
    """A tokenizer that is missing, or that OpenVINO Tokenizers cannot express."""


class NoRoom(ExportError):
    """Too little free space on a disk."""


class OutputExists(ExportError):
    """Something is at the output path already."""


class NotWritable(ExportError):
    """The output path is in a place where this user cannot write."""


class ExportInProgress(ExportError):
    """Another export is writing to the same output path."""


class RoundTripFailed(ExportError):
    """The exported pair generated other tokens with speculation than without."""
