"""Errors that Outrider raises on purpose. Each message says what was wrong, the value, and what to do."""


class OutriderError(Exception):
    """Base class of all of them."""


class UnknownOption(OutriderError):
    """An option that Outrider does not have or support."""


class InvalidOption(OutriderError):
    """A value that an option cannot have."""


class ImpossibleForm(InvalidOption):
    """A form of structured output that llguidance cannot follow, for this reason."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, reason)  # for copies, and for sending it to another process
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[0])


class EmptyPrompt(OutriderError):
    """A prompt without a single token."""


class UnknownToken(OutriderError):
    """A token id that is not in the model's vocabulary."""


class PromptTooLong(OutriderError):
    """A prompt that leaves no room for an answer in the model's context."""


class CacheTooSmall(OutriderError):
    """A request that the key-value cache could not hold even if it were empty."""


class BrokenPair(OutriderError):
    """A pair folder with a missing or damaged file."""


class VocabularyMismatch(OutriderError):
    """A draft model whose vocabulary is not the target's."""


class UnsupportedModel(OutriderError):
    """A model that cannot be converted to paged attention, or has inputs that the engine cannot feed."""


class UnsupportedDevice(OutriderError):
    """A device that OpenVINO does not find, or on which the model cannot be loaded."""


class DeviceFailed(OutriderError):
    """A device, or OpenVINO GenAI, failed in the middle of a request."""


class BrokenLogits(OutriderError):
    """A row of logits from which no token can be chosen, such as one with a NaN."""


def reason_of(error: BaseException) -> str:
    """The last line of an error's message, where OpenVINO says what happened, without its full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")
