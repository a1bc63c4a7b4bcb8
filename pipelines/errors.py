"""Every way in which Outrider refuses. Each message says what was wrong, the value, and what to do."""


class OutriderError(Exception):
    """The base of all errors that Outrider raises on purpose."""


class UnknownOption(OutriderError):
    """An option that no part of Outrider knows, or that it does not support."""


class InvalidOption(OutriderError):
    """A known option with a value that it cannot have."""


class EmptyPrompt(OutriderError):
    """A prompt without a single token."""


class UnknownToken(OutriderError):
    """A prompt of token ids with one that the model's vocabulary does not have."""


class PromptTooLong(OutriderError):
    """A prompt that leaves no room for an answer in the model's context."""


class CacheTooSmall(OutriderError):
    """A request that the key-value cache could not hold even if it were empty."""


class BrokenPair(OutriderError):
    """A pair folder with a missing or damaged file."""


class VocabularyMismatch(OutriderError):
    """A draft model whose vocabulary is not the target's."""


class UnsupportedModel(OutriderError):
    """A model without a paged-attention form, or with inputs that the engine cannot feed."""


class UnsupportedDevice(OutriderError):
    """A device that OpenVINO does not see, or on which the engine does not run."""


class DeviceFailed(OutriderError):
    """A device, or what runs the model there, that gave up in the middle of a request."""


class BrokenLogits(OutriderError):
    """A row of logits that no token can be chosen from."""


def reason_of(error: BaseException) -> str:
    """The last line of an error's message, which is where OpenVINO says what happened; without its full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")
