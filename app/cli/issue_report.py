"""The report of `outrider doctor`: what a person can paste into an issue about a device."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import openvino as ov

from outrider.pipelines.devices.devices import CPU

from ..load_options import LoadOptions
from ..writable import write
from .scrubbing import scrubbed, without_path

REPORT = "--report"
PACKAGES = ("outrider", "openvino", "openvino-genai", "openvino-tokenizers")
PROPERTIES = (
    "FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE", "OPTIMIZATION_CAPABILITIES", "NPU_DRIVER_VERSION",
    "NPU_COMPILER_VERSION", "NPU_DEVICE_TOTAL_MEM_SIZE", "GPU_DRIVER_VERSION", "GPU_DEVICE_TOTAL_MEM_SIZE",
    "GPU_UARCH_VERSION", "GPU_EXECUTION_UNITS_COUNT", "INFERENCE_NUM_THREADS",
)  # fmt: skip


def write_report(path: Path, load: LoadOptions, pair: Path, findings: str, failure: Exception | None = None) -> None:
    """Write the findings with the versions of software and devices, as Markdown, and what ended them, if anything did.
    No folders, names of users or serial numbers are in it. Raises InvalidOption if the file cannot be written."""
    where = load.device if load.draft_device == CPU else f"{load.device}, with the draft model on {load.draft_device}"
    if load.stand_in is not None:
        where += f", where {load.stand_in} stood in for an NPU"
    lines = [f"# Outrider on {where}", "", "| what | which |", "| --- | --- |"]
    about = (*_software(), *_options(load), *_hardware(load.device, load.draft_device))
    lines += [f"| {name} | {value} |" for name, value in about]
    told = scrubbed("\n".join((findings.strip("\n"), *_told(failure))), pair)
    lines += ["", "```text", told.strip("\n"), "```", ""]
    write(path, "\n".join(lines), REPORT)


def _software() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        yield package, version(package)
    yield "Python", platform.python_version()
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"


def _options(load: LoadOptions) -> Iterator[tuple[str, str]]:
    """How the pair was loaded."""
    yield "draft device", load.draft_device
    yield "engine", "genai" if load.uses_genai else "outrider"
    if load.speculation is not None:
        yield "speculation", load.speculation
    if load.cache_tokens is not None:
        yield "cache tokens", str(load.cache_tokens)
    if load.head is not None:
        yield "head", without_path(str(load.head))
    for name, value in load.properties.items():
        yield name, without_path(value)


def _hardware(*devices: str) -> Iterator[tuple[str, str]]:
    """The properties of the processor and of the devices, as far as they are known."""
    core = ov.Core()
    for name in dict.fromkeys(("CPU", *devices)):
        known = dict(_properties(core, name))
        yield from known.items() if known else [(name, "not found by OpenVINO")]


def _properties(core: ov.Core, device: str) -> Iterator[tuple[str, str]]:
    for key in PROPERTIES:
        try:
            value = core.get_property(device, key)
        except RuntimeError:  # another kind of device, another release, or no such device
            continue
        yield f"{device} {key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _told(failure: BaseException | None) -> Iterator[str]:
    """What ended the examination, and the errors behind it, in which OpenVINO says more."""
    while failure is not None:
        yield f"{type(failure).__name__}: {failure}"
        failure = failure.__cause__
