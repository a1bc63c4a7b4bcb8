"""Devices: which ones OpenVINO finds, which engine decodes there, and the properties that they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import openvino

from ..errors import DeviceFailed, InvalidOption, UnsupportedDevice, reason_of

CPU, NPU = "CPU", "NPU"
OUTRIDER, GENAI = "outrider", "genai"  # engines
SEVERAL = ("AUTO", "MULTI", "HETERO", "BATCH")  # OpenVINO's virtual devices, which stand for others
# What `openvino_genai.LLMPipeline` takes for its engine, with what to do for Outrider's.
GENAI_PROPERTIES = {
    "prompt_lookup": "leave it out, and ask for mode='lookup' in a request",
    "draft_model": "load a pair that was exported with --draft",
    "scheduler_config": "leave it out, or give cache_tokens for the size of the cache",
    "ATTENTION_BACKEND": "leave it out",
    "adapters": "merge them into the model, and export that",
}


def device_names() -> tuple[str, ...]:
    """The devices that OpenVINO finds, by its names: "CPU", "GPU" (or "GPU.0", "GPU.1" if there are several), "NPU"."""
    return tuple(openvino.Core().available_devices)


def stand_in(device: str, properties: Mapping[str, Any]) -> str | None:
    """The devices on which OpenVINO's code for NPUs is told to compute instead; None if the NPU computes."""
    chosen = str(properties.get("NPUW_DEVICES", NPU))
    return chosen if device == NPU and NPU not in chosen.split(",") else None


def check_types(devices: Iterable[object], config: object) -> None:
    """Raises InvalidOption for a device that is not given by its name, and for a `config` that is no mapping."""
    for device in devices:
        if not isinstance(device, str):
            raise InvalidOption(
                f"{type(device).__name__} is no device: give the name of one, such as 'CPU', after the pair's folder, "
                "which also has the tokenizer."
            )
    if not isinstance(config, Mapping | None):
        raise InvalidOption(f"config={config!r} is not possible: give a dictionary of OpenVINO's properties.")


def check_device(device: str, properties: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Raises UnsupportedDevice if OpenVINO finds no device of this name. Its code for NPUs also computes on other
    devices, if `properties` say so."""
    if device == CPU or stand_in(device, properties):  # looking for the others takes time
        return
    seen = device_names()
    if device.split(":")[0] in SEVERAL:
        raise UnsupportedDevice(f"{device!r} is no single device: name one of {', '.join(map(repr, seen))}.")
    known = set(seen)
    known |= {"GPU" for name in seen if name.startswith("GPU.")}  # the first of them
    known |= {"GPU.0" for name in seen if name == "GPU"}
    if device not in known:
        raise UnsupportedDevice(
            f"OpenVINO finds no device {device!r} on this machine: choose one of {', '.join(map(repr, seen))}, or "
            "install the device's driver."
        )


def given_properties(config: Mapping[str, Any] | None, properties: Mapping[str, Any]) -> dict[str, Any]:
    """OpenVINO's properties, given as a mapping and as keywords, which prevail. An element type becomes its name, which
    can be compared and saved."""
    merged = {**(config or {}), **properties}
    return {name: v.get_type_name() if isinstance(v, openvino.Type) else v for name, v in merged.items()}


def engine_of(device: str, engine: str | None, speculation: str | None, properties: Mapping[str, Any]) -> str:
    """OUTRIDER or GENAI. Raises InvalidOption, also for properties that the engine cannot have."""
    if engine not in (None, OUTRIDER, GENAI):
        raise InvalidOption(f"engine={engine!r} is not possible: give {OUTRIDER!r} or {GENAI!r}.")
    if device in (CPU, NPU) and engine == GENAI:
        raise InvalidOption(f"engine={GENAI!r} is for GPUs: leave it out on {device}.")
    chosen = engine or (OUTRIDER if device in (CPU, NPU) else GENAI)
    if chosen == OUTRIDER and speculation is not None:
        raise InvalidOption(
            f"speculation={speculation!r} is for OpenVINO GenAI: on {device}, with Outrider's engine, every request "
            "chooses its `mode`, so leave it out."
        )
    if chosen == OUTRIDER and (name := next((name for name in GENAI_PROPERTIES if name in properties), None)):
        raise InvalidOption(
            f"{name} is for OpenVINO GenAI's engine, and on {device} Outrider's decodes: {GENAI_PROPERTIES[name]}."
        )
    return chosen


def npu_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The OpenVINO properties that concern only NPUs, judged by their names."""
    return {name: value for name, value in properties.items() if name.startswith(NPU)}


@contextmanager
def failing(device: str) -> Iterator[None]:
    """Raises DeviceFailed for OpenVINO's errors."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceFailed(
            f"{device} failed on this request ({reason_of(error)}): ask again, update the device's driver, or use "
            "another device."
        ) from error


@contextmanager
def failing_to_load(device: str, remedy: str = "exact=False, so that less is tried") -> Iterator[None]:
    """Raises UnsupportedDevice for a device that fails while a model is tried there.

    remedy: what to load the pair with in order to avoid this, for the message.
    """
    try:
        yield
    except DeviceFailed as error:
        raise UnsupportedDevice(
            f"{device} failed when the model was tried there ({reason_of(error.__cause__ or error)}): update the "
            f"device's driver, load the pair with {remedy}, or use another device."
        ) from error


def whole_number(properties: Mapping[str, Any], name: str, default: int) -> int:
    """A property that counts something. Raises InvalidOption."""
    value = properties.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(f"{name}={value!r} is not possible: give a whole number from 1 up.")
    return value
