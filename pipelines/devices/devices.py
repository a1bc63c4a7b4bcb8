"""The devices that OpenVINO sees, and a model loaded on one of them by OpenVINO GenAI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import openvino
import openvino_genai

from ..config import UNLIMITED
from ..errors import InvalidOption, UnsupportedDevice, reason_of

CPU, NPU = "CPU", "NPU"
MAX_PROMPT_LEN, MIN_RESPONSE_LEN = 1024, 128  # what GenAI prepares an NPU for, unless told otherwise
BLOCK_SIZES = {"GPU": 16}  # tokens of a block of GenAI's cache
BLOCK_SIZE = 32  # the same where it is not in the table
DRAFTING = ("draft_model", "prompt_lookup")  # properties with which GenAI drafts
SCHEDULING = frozenset({"scheduler_config", "ATTENTION_BACKEND"})  # those that say how the cache is kept


@dataclass(frozen=True, slots=True)
class Room:
    """What a device was prepared for: tokens of a prompt, tokens of prompt and answer, and what makes it more."""

    prompt_tokens: int
    tokens: int
    remedy: str


def device_names() -> tuple[str, ...]:
    """The devices that OpenVINO sees, as it names them: "CPU", "GPU" (or "GPU.0", "GPU.1" of several), "NPU"."""
    return tuple(openvino.Core().available_devices)


def check_device(device: str) -> None:
    """Raises UnsupportedDevice where OpenVINO does not see a device of this name."""
    if device == CPU:  # to look at the others takes time
        return
    seen = device_names()
    known = set(seen)
    known |= {"GPU" for name in seen if name.startswith("GPU.")}  # the first of them
    known |= {"GPU.0" for name in seen if name == "GPU"}
    if device not in known:
        raise UnsupportedDevice(
            f"OpenVINO sees no device {device!r} on this machine: choose one of {', '.join(map(repr, seen))}, or "
            "install the device's driver."
        )


def load(
    model: Path,
    device: str,
    max_context: int,
    cache_tokens: int | None = None,
    exact: bool = True,
    properties: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[openvino_genai.LLMPipeline, Room]:
    """Load a model as GenAI runs it on `device`: paged attention, or the fixed shapes of an NPU.

    `cache_tokens` is the size of the cache; None lets it grow as requests need. On an NPU the properties MAX_PROMPT_LEN
    and MIN_RESPONSE_LEN take its place. `exact=False` keeps what was computed for the next prompt that begins alike;
    measured on the CPU, that makes the text depend on what was asked before. The properties are those of
    `openvino_genai.LLMPipeline`. Raises UnsupportedDevice and InvalidOption.
    """
    for name in DRAFTING:
        if name in properties:
            raise InvalidOption(
                f"{name}={properties[name]!r} is not possible: on {device} answers are written by plain decoding. "
                "Leave it out, or use the CPU, where every request chooses its mode."
            )
    given = dict(properties)
    room = Room(max_context, max_context, "a model of longer context")
    if device == NPU:
        prompt = _whole(properties, "MAX_PROMPT_LEN", MAX_PROMPT_LEN)
        tokens = prompt + _whole(properties, "MIN_RESPONSE_LEN", MIN_RESPONSE_LEN)
        room = Room(prompt, tokens, "a larger MAX_PROMPT_LEN or MIN_RESPONSE_LEN")
        if cache_tokens is not None:
            raise InvalidOption(
                f"cache_tokens={cache_tokens} is not possible on an NPU: give MAX_PROMPT_LEN and MIN_RESPONSE_LEN."
            )
    elif SCHEDULING.isdisjoint(properties):
        num_blocks = 0 if cache_tokens is None else -(-cache_tokens // _block_size(device))
        given["scheduler_config"] = _scheduler(num_blocks, prefix_caching=not exact)
        if num_blocks:
            held = num_blocks * _block_size(device)
            room = Room(held, held, "more cache_tokens")
    elif cache_tokens is not None:
        raise InvalidOption(
            f"cache_tokens={cache_tokens} is not possible together with {', '.join(SCHEDULING & set(properties))}: "
            "leave one of them out."
        )
    try:
        return openvino_genai.LLMPipeline(model, device, **given), room
    except (RuntimeError, TypeError) as error:
        with_what = f" with {', '.join(sorted(properties))}" if properties else ""
        raise UnsupportedDevice(
            f"OpenVINO could not load {model} on {device}{with_what} ({reason_of(error)}): update the device's driver, "
            f"check the properties, or use another device ({', '.join(device_names())})."
        ) from error


def _scheduler(num_blocks: int, prefix_caching: bool) -> openvino_genai.SchedulerConfig:
    """Prompts are read in one pass, as GenAI's LLMPipeline does by itself. No blocks: as many as are needed."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = num_blocks
    scheduler.max_num_batched_tokens = UNLIMITED
    scheduler.enable_prefix_caching = prefix_caching
    return scheduler


def _block_size(device: str) -> int:
    return BLOCK_SIZES.get(device.split(".")[0], BLOCK_SIZE)


def _whole(properties: Mapping[str, Any], name: str, default: int) -> int:
    value = properties.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(f"{name}={value!r} is not possible: give a whole number from 1 up.")
    return value
