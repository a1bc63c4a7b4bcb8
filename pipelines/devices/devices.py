"""Devices: which ones OpenVINO finds, and the properties that they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import openvino

from ..errors import DeviceFailed, InvalidOption, UnsupportedDevice, reason_of

CPU, NPU = "CPU", "NPU"


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


def whole_number(properties: Mapping[str, Any], name: str, default: int) -> int:
    """A property that counts something. Raises InvalidOption."""
    value = properties.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(f"{name}={value!r} is not possible: give a whole number from 1 up.")
    return value
