"""The Hugging Face hub. No other module of Outrider sends requests to other machines."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from io import FileIO
from json import JSONDecodeError
from pathlib import Path
from typing import Any
from urllib.request import getproxies

from .catalogue import is_commit
from .digest import sha256
from .errors import BadDownload, HubUnreachable, NoSuchModel, NoSuchRevision, OtherRevision

TEXT_FILES = ("*.json", "*.txt", "*.jinja", "*.model")  # configuration and tokenizers
IR_FILES = (*TEXT_FILES, "openvino_*.xml", "openvino_*.bin", "LICENSE*", "README.md")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: its size in bytes, and the SHA-256 of a large file or git's SHA-1 of a small one."""

    name: str
    size: int
    sha256: str | None
    git_sha1: str | None

    @property
    def part(self) -> str:
        """Its name while it is incomplete. It depends on the hash, so parts of different versions never mix."""
        return f"{self.name}.{(self.sha256 or self.git_sha1 or '')[:16]}.part"

    def is_at(self, path: Path) -> bool:
        """Whether the file at `path` has the listed bytes."""
        if not self.has_size(path):
            return False
        if self.sha256 is not None:
            return sha256(path) == self.sha256
        content = path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == self.git_sha1

    def has_size(self, path: Path) -> bool:
        """Whether the file at `path` has the listed size."""
        return path.is_file() and path.stat().st_size == self.size


@dataclass(frozen=True, slots=True)
class Repository:
    """A model on the hub at one commit, and those of its files that are wanted."""

    name: str
    revision: str
    files: tuple[RemoteFile, ...]

    def missing_bytes(self, folder: Path, same_commit: bool = True) -> int:
        """Bytes that are not in `folder` yet.

        same_commit: whether all that `folder` has is of this commit, so that sizes tell what is there.
        """
        is_there = RemoteFile.has_size if same_commit else RemoteFile.is_at
        missing = (file for file in self.files if not is_there(file, folder / file.name))
        return sum(file.size - _size_of_part(file, folder / file.part) for file in missing)


def _size_of_part(file: RemoteFile, path: Path) -> int:
    size = path.stat().st_size if path.is_file() else 0
    return size if size <= file.size else 0  # a longer one is not resumed


def list_repository(
    name: str, revision: str | None = None, patterns: Sequence[str] = IR_FILES, nor: str = "not"
) -> Repository:
    """The files of `ORG/NAME` that match `patterns`, subfolders left out, at a commit, branch or tag.

    revision: None is the default branch.
    nor: how an error message continues after "ORG/NAME is".

    Raises NoSuchModel, NoSuchRevision, HubUnreachable, BadDownload, and OtherRevision if the hub answers with another
    commit.
    """
    from huggingface_hub import HfApi

    with _refusing(name if revision is None else f"{name}@{revision}", nor):
        model = HfApi().model_info(name, revision=revision, files_metadata=True)
    if revision is not None and is_commit(revision) and model.sha != revision:
        raise OtherRevision(
            f"The hub was asked for {name} at {revision} and answered with {model.sha}: nothing is downloaded. Try "
            "later, or name another commit."
        )
    files = tuple(
        RemoteFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None, file.blob_id)
        for file in model.siblings or ()
        if any(fnmatch(file.rfilename, pattern) for pattern in patterns) and not set(file.rfilename) & {"/", "\\"}
    )
    for file in files:
        if file.sha256 is None and file.git_sha1 is None:
            raise BadDownload(f"The hub lists no hash for {file.name} of {name}, so it cannot be checked: try later.")
    return Repository(name, str(model.sha), files)


def fetch(repository: Repository, folder: Path, advance: Callable[[int], None]) -> None:
    """Make `folder` contain exactly the repository's files, each with the listed hash.

    Files that are present and correct are kept, and interrupted ones are resumed; all other files are removed.
    advance: called with the number of bytes found or downloaded; negative if some have to be discarded.

    Raises NoSuchModel, HubUnreachable, BadDownload.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name for file in repository.files for name in (file.name, file.part)}
    for stranger in set(folder.iterdir()):
        if stranger.name not in wanted or not stranger.is_file():
            shutil.rmtree(stranger) if stranger.is_dir() else stranger.unlink()
    for file in repository.files:
        if file.is_at(folder / file.name):
            advance(file.size)
        else:
            _fetch_file(repository, file, folder, advance)


def _fetch_file(repository: Repository, file: RemoteFile, folder: Path, advance: Callable[[int], None]) -> None:
    # The hub's snapshot_download restarts interrupted files, and compares sizes only.
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    part = folder / file.part
    with _refusing(repository.name), _CountedFile(part, advance) as arriving:
        if arriving.tell() > file.size:
            arriving.truncate(0)
        try:
            http_get(
                hf_hub_url(repository.name, file.name, revision=repository.revision),
                arriving,
                resume_size=arriving.tell(),
                headers=build_hf_headers(library_name="outrider"),
                expected_size=file.size,
                tqdm_class=_Silent,
            )
        except OSError as error:
            if isinstance(error, HfHubHTTPError) or error.errno is not None:
                raise
            raise BadDownload(
                f"{file.name} of {repository.name} arrived with another size than the hub lists: try again."
            ) from error
    if not file.is_at(part):
        advance(-part.stat().st_size)
        part.unlink()
        raise BadDownload(
            f"{file.name} of {repository.name} arrived with other bytes than the hub lists, so it was removed: "
            "try again; correct files are kept."
        )
    part.replace(folder / file.name)


class _CountedFile(FileIO):
    """A file to append to, which reports changes of its size."""

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        super().__init__(path, "ab")
        self._advance = advance
        self.seek(0, 2)
        advance(self.tell())

    def write(self, data: Any) -> int:
        written = 0
        while written < len(data):  # an unbuffered file may write only a part
            written += super().write(data[written:]) or 0
        self._advance(written)
        return written

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        before = self.seek(0, 2)
        after = super().truncate(size)
        self.seek(0, 2)
        self._advance(after - before)
        return after


class _Silent:
    """Replaces the hub's progress bar: `_CountedFile` reports the progress."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, count: float | None = 1) -> None:
        pass


def cached(repository: Repository) -> Path | None:
    """The repository's folder in the hub's own cache, if it has all the files with the listed bytes."""
    folder = cached_snapshot(repository.name, repository.revision)
    return folder if folder and all(file.is_at(folder / file.name) for file in repository.files) else None


def cached_snapshot(name: str, revision: str | None) -> Path | None:
    """What the hub's own cache, which other programs fill, has of `ORG/NAME`. Does not use the network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


@contextmanager
def _refusing(name: str, nor: str = "not") -> Iterator[None]:
    """Convert the errors of the hub's library about `ORG/NAME` or `ORG/NAME@REVISION`."""
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        DisabledRepoError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository, _, revision = name.partition("@")
    try:
        yield
    except HFValidationError as error:
        raise NoSuchModel(f"{name} is {nor} a hub id such as ORG/NAME. ({error})") from error
    except GatedRepoError as error:
        raise NoSuchModel(
            f"{name} is gated: accept its licence on the hub, log in with `hf auth login`, and try again."
        ) from error
    except (RepositoryNotFoundError, DisabledRepoError) as error:
        raise NoSuchModel(f"{name} is {nor} a model of the Hugging Face hub that you can read.") from error
    except RevisionNotFoundError as error:
        raise NoSuchRevision(f"{repository} has no revision {revision} on the Hugging Face hub.") from error
    except JSONDecodeError as error:
        raise HubUnreachable(
            f"{name} cannot be downloaded: {constants.ENDPOINT} does not answer as the hub does. Log in to your "
            "network if it asks for that, correct HF_ENDPOINT if it is set, and try again."
        ) from error
    except (OfflineModeIsEnabled, HfHubHTTPError, httpx.HTTPError, httpx.InvalidURL) as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403):
            raise NoSuchModel(
                f"{name} cannot be downloaded: the hub refuses access ({_in_one_line(error)}). Log in again with "
                "`hf auth login`, or unset HF_TOKEN if it is set."
            ) from error
        if isinstance(error, OfflineModeIsEnabled):
            variable = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
            raise HubUnreachable(
                f"{name} cannot be downloaded: {variable} is set. Unset it and try again; a program of your own "
                "calls keep_private(network=True)."
            ) from error
        raise HubUnreachable(
            f"{name} cannot be downloaded: the hub cannot be reached ({_in_one_line(error)}). Connect and try again."
        ) from error
    except (ImportError, ValueError, OSError) as error:
        if (setting := _unusable_setting(error)) is None:
            raise
        raise HubUnreachable(f"{name} cannot be downloaded: {setting}") from error


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _unusable_setting(error: Exception) -> str | None:
    """Which setting of this machine the hub's library cannot use, and what to do; None if that is not the reason."""
    from huggingface_hub import constants

    if isinstance(error, UnicodeEncodeError) and error.object.startswith("Bearer "):
        return (
            "your token has characters that no token has. Copy it anew to HF_TOKEN, or unset that and log in with "
            "`hf auth login`."
        )
    if isinstance(error, OSError):
        if error.filename in (constants.HF_TOKEN_PATH, constants.HF_STORED_TOKENS_PATH):
            return f"{error.filename} cannot be read ({error.strerror}). Make it readable, or correct HF_HOME if set."
        if not _can_read_certificates():
            return f"SSL_CERT_FILE is {os.environ['SSL_CERT_FILE']}, which has no certificates. Correct or unset it."
        return None
    if setting := _unusable_proxy():
        return f"{setting}, which cannot be used here. Give a proxy that begins with http:// or https://, or unset it."
    return None


def _can_read_certificates() -> bool:
    """Whether those of SSL_CERT_FILE can be read, if it is set, as httpx does."""
    try:
        ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))
    except OSError:
        return False
    return True


def _unusable_proxy() -> str | None:
    """Which setting asks for a proxy that is neither of HTTP nor of HTTPS. Its address may hold a password."""
    for kind in ("http", "https", "all"):  # those that the hub's library reads
        proxy = getproxies().get(kind, "")
        scheme, separator, _ = proxy.partition("://")
        if separator and scheme.lower() not in ("http", "https"):
            variables = (key for key, value in os.environ.items() if (key.lower(), value) == (f"{kind}_proxy", proxy))
            return f"{next(variables, 'this system')} asks for a {scheme}:// proxy"
    return None
