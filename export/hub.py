"""Checkpoints from the Hugging Face hub. The one place in Outrider that uses the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import HubUnreachable, NoSuchModel
from .room import in_words, require_room

TEXT_FILES = ("*.json", "*.txt", "*.jinja", "*.model")  # configuration and tokenizers
SAFE_WEIGHTS = ("model*.safetensors",)  # some repositories hold the same weights once more under other names
PICKLED_WEIGHTS = ("pytorch_model*.bin",)


@dataclass(frozen=True, slots=True)
class Download:
    """A checkpoint of the hub on this machine."""

    folder: Path
    revision: str


def download(name: str, remote_code: bool, announce: Callable[[str], None]) -> Download:
    """Fetch the model `ORG/NAME` or `ORG/NAME@REVISION`, or find it in the hub's local cache.

    `announce` is told before anything is fetched. Raises NoSuchModel, HubUnreachable, NoRoom.
    """
    import httpx
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository, _, revision = name.partition("@")
    code = ("*.py",) if remote_code else ()
    try:
        model = HfApi().model_info(repository, revision=revision or None, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in model.siblings or ()}
        weights = SAFE_WEIGHTS if any(Path(file).match(SAFE_WEIGHTS[0]) for file in sizes) else PICKLED_WEIGHTS
        patterns = (*TEXT_FILES, *code, *weights)
        size = sum(size for file, size in sizes.items() if any(Path(file).match(pattern) for pattern in patterns))
        require_room(Path(HF_HUB_CACHE), size, f"Downloading {name}")
        announce(f"Downloading {name} from the Hugging Face hub ({in_words(size)})")
        folder = snapshot_download(repository, revision=revision or None, allow_patterns=list(patterns))
    except HFValidationError as error:
        raise NoSuchModel(f"{name} is neither a folder nor a hub id such as ORG/NAME. ({error})") from error
    except GatedRepoError as error:
        raise NoSuchModel(
            f"{name} is gated: accept its licence on the hub, log in with `hf auth login`, and try again."
        ) from error
    except RepositoryNotFoundError as error:
        raise NoSuchModel(
            f"{name} is neither a folder nor a model of the Hugging Face hub that you can read."
        ) from error
    except RevisionNotFoundError as error:
        raise NoSuchModel(f"{repository} has no revision {revision} on the Hugging Face hub.") from error
    except (OfflineModeIsEnabled, HfHubHTTPError, httpx.HTTPError) as error:
        try:
            folder = snapshot_download(repository, revision=revision or None, local_files_only=True)
        except LocalEntryNotFoundError:
            offline = isinstance(error, OfflineModeIsEnabled)
            reason = "HF_HUB_OFFLINE is set" if offline else f"the hub cannot be reached ({error})"
            raise HubUnreachable(
                f"{name} is not a folder, and as a hub id it cannot be downloaded: {reason}. "
                "Name a folder with a checkpoint, or connect and try again."
            ) from error
    return Download(Path(folder), Path(folder).name)
