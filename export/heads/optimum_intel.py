"""Heads whose IR optimum-intel builds."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint
from ..convert import TASK
from ..errors import ConversionFailed
from ..renamed import known_form


def language_config(target: Checkpoint) -> Any:
    """The transformers configuration of a target's language part."""
    from transformers import AutoConfig

    with known_form(target) as folder:
        return AutoConfig.from_pretrained(folder, trust_remote_code=target.remote_code).get_text_config()


@contextmanager
def converting(head: Checkpoint) -> Iterator[None]:
    """Raises ConversionFailed for whatever goes wrong."""
    try:
        yield
    except Exception as error:
        raise ConversionFailed(
            f"optimum-intel cannot convert the head {head.source} ({type(error).__name__}: {error}): choose "
            "another one, or a newer optimum-intel."
        ) from error


def load_weights(model: Any, weights: dict[str, Any], kind: str, optional: Set[str] = frozenset()) -> None:
    """Put weights into a torch model. Raises ValueError where some are unknown, or missing and not optional."""
    missing, unknown = model.load_state_dict(weights, strict=False)
    if lacking := sorted({*missing} - optional) + sorted(unknown):
        raise ValueError(f"its weights are not those of {kind}: {', '.join(lacking[:3])}")


def write_ir(model: Any, folder: Path, **options: Any) -> None:
    """Write a model's IR and configuration to `folder`; options are those of `export_from_model`."""
    from optimum.exporters.openvino.convert import export_from_model
    from optimum.intel import OVConfig

    export_from_model(model.eval().float(), folder, task=TASK, stateful=True, ov_config=OVConfig(), **options)
    for file in folder.glob("*tok*"):  # a head has no tokenizer, and optimum-intel makes one up
        file.unlink()
