"""Why a pair could not be fetched, kept or written. Each message says what was wrong, the value, and what to do."""

from outrider.pipelines.errors import OutriderError


class UnknownName(OutriderError):
    """A name that the catalogue does not have, or under which nothing was pulled."""


class NoSuchModel(OutriderError):
    """Neither a folder with a model nor a model of the hub that this user can read."""


class HubUnreachable(OutriderError):
    """A model of the hub, with no way to the hub and nothing of it on this machine."""


class IncompleteModel(OutriderError):
    """A repository of the hub without a file that the engine needs."""


class BadDownload(OutriderError):
    """A file whose bytes are not those that the hub lists."""


class OtherRevision(OutriderError):
    """A commit of a repository where another one is wanted."""


class BadCatalogue(OutriderError):
    """A catalogue that is damaged."""


class NoRoom(OutriderError):
    """Too little free space on a disk."""


class OutputExists(OutriderError):
    """Something is at the output path already."""


class NotWritable(OutriderError):
    """A path in a place where this user cannot write."""


class InProgress(OutriderError):
    """Another process is writing to the same output path."""
