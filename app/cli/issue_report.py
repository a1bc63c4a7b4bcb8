"""The report of `outrider doctor`: what a person can paste into an issue about a device."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import openvino as ov

from outrider.pipelines import InvalidOption

PACKAGES = ("outrider", "openvino", "openvino-genai", "openvino-tokenizers")
PROPERTIES = (
    "FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE", "OPTIMIZATION_CAPABILITIES", "NPU_DRIVER_VERSION",
    "NPU_COMPILER_VERSION", "NPU_DEVICE_TOTAL_MEM_SIZE", "GPU_DEVICE_TOTAL_MEM_SIZE", "GPU_UARCH_VERSION",
    "GPU_EXECUTION_UNITS_COUNT", "INFERENCE_NUM_THREADS",
)  # fmt: skip


def require_writable(path: Path) -> None:
    """Raises InvalidOption if a report cannot be written there, which is better known before measuring."""
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidOption(f"--report {path} cannot be written: give a file in a folder that is there.")


def write_report(path: Path, device: str, findings: str) -> None:
    """Write the findings with the versions of software and devices, as Markdown. No paths, names of users or serial
    numbers are in it. Raises InvalidOption if the file cannot be written."""
    lines = [f"# Outrider on {device}", "", "| what | which |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in (*_software(), *_hardware(device))]
    lines += ["", "```text", findings.strip("\n"), "```", ""]
    try:
        path.write_text("\n".join(lines), encoding="utf-8")
    except OSError as error:
        raise InvalidOption(f"--report {path} cannot be written ({error.strerror}): give another file.") from error


def _software() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        yield package, version(package)
    yield "Python", platform.python_version()
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"


def _hardware(device: str) -> Iterator[tuple[str, str]]:
    """The properties of the processor and of the device, as far as they are known."""
    core = ov.Core()
    for name in dict.fromkeys(("CPU", device)):
        if name not in core.available_devices and f"{name}.0" not in core.available_devices:
            yield name, "not found by OpenVINO"
            continue
        for key in PROPERTIES:
            try:
                value = core.get_property(name, key)
            except RuntimeError:  # another kind of device, or another release
                continue
            yield f"{name} {key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)
