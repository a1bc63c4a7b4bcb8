"""Devices: which ones OpenVINO finds, and models that OpenVINO GenAI loads on one of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import openvino
import openvino_genai

from ..config import UNLIMITED
from ..engine.room import Room
from ..errors import InvalidOption, UnsupportedDevice, reason_of

CPU, NPU = "CPU", "NPU"
BLOCK_SIZES = {"GPU": 16}  # tokens in a block of GenAI's cache
BLOCK_SIZE = 32  # the same on other devices
DRAFTING = ("draft_model", "prompt_lookup")  # properties that make GenAI draft
SCHEDULING = frozenset({"scheduler_config", "ATTENTION_BACKEND"})  # properties that configure the cache


def device_names() -> tuple[str, ...]:
    """The devices that OpenVINO finds, by its names: "CPU", "GPU" (or "GPU.0", "GPU.1" if there are several), "NPU"."""
    return tuple(openvino.Core().available_devices)


def check_device(device: str, properties: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Raises UnsupportedDevice if OpenVINO finds no device of this name. Its code for NPUs also computes on other
    devices, if `properties` say so."""
    if device == CPU:  # looking for the others takes time
        return
    if device == NPU and NPU not in str(properties.get("NPUW_DEVICES", NPU)).split(","):
        return
    seen = device_names()
    known = set(seen)
    known |= {"GPU" for name in seen if name.startswith("GPU.")}  # the first of them
    known |= {"GPU.0" for name in seen if name == "GPU"}
    if device not in known:
        raise UnsupportedDevice(
            f"OpenVINO finds no device {device!r} on this machine: choose one of {', '.join(map(repr, seen))}, or "
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
    """Load a model with OpenVINO GenAI, which uses paged attention.

    cache_tokens: size of the cache; None lets it grow with the requests.
    exact: False keeps computed prompts for later ones that begin alike. With that, texts depended on earlier requests
        when it was measured on the CPU.
    properties: those of `openvino_genai.LLMPipeline`.

    Raises UnsupportedDevice and InvalidOption.
    """
    for name in DRAFTING:
        if name in properties:
            raise InvalidOption(
                f"{name}={properties[name]!r} is not possible: on {device} there is only plain decoding. "
                "Leave it out, or use the CPU, where every request chooses its mode."
            )
    given = dict(properties)
    room = Room(max_context, "a model of longer context")
    if SCHEDULING.isdisjoint(properties):
        num_blocks = 0 if cache_tokens is None else -(-cache_tokens // _block_size(device))
        given["scheduler_config"] = _scheduler(num_blocks, prefix_caching=not exact)
        if num_blocks:
            held = num_blocks * _block_size(device)
            room = Room(held, "cache_tokens={tokens} or more", held)
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
    """Prompts are read in one pass, as is GenAI's default. With `num_blocks=0` the cache grows as needed."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = num_blocks
    scheduler.max_num_batched_tokens = UNLIMITED
    scheduler.enable_prefix_caching = prefix_caching
    return scheduler


def _block_size(device: str) -> int:
    return BLOCK_SIZES.get(device.split(".")[0], BLOCK_SIZE)


def whole_number(properties: Mapping[str, Any], name: str, default: int) -> int:
    """A property that counts something. Raises InvalidOption."""
    value = properties.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(f"{name}={value!r} is not possible: give a whole number from 1 up.")
    return value
