"""Errors of downloading, storing and writing pairs. Each message names the problem, the value and a remedy."""

from outrider.pipelines.errors import OutriderError


class UnknownName(OutriderError):
    """A name that is neither in the catalogue nor that of a pulled pair."""


class NoSuchModel(OutriderError):
    """Neither the folder of a model nor a model on the hub that this user may read."""


class HubUnreachable(OutriderError):
    """A model on the hub, which cannot be reached, and is not on this machine."""


class NoSuchRevision(NoSuchModel):
    """A revision that a repository on the hub does not have."""


class IncompleteModel(OutriderError):
    """A repository on the hub that lacks a file which the engine needs."""


class BadDownload(OutriderError):
    """A file whose bytes differ from the hash that the hub lists."""


class OtherRevision(OutriderError):
    """Another commit of a repository than the one asked for."""


class BadCatalogue(OutriderError):
    """A damaged catalogue."""


class NoRoom(OutriderError):
    """Too little free space on a disk."""


class OutputExists(OutriderError):
    """The output path exists already."""


class NotWritable(OutriderError):
    """A path that this user cannot write to."""


class NotReadable(OutriderError):
    """A folder that this user cannot read."""


class InProgress(OutriderError):
    """Another process is writing to the same path."""
