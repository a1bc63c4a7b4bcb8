"""Device check: the target answers on the device that it is made for, and the CPU computes how likely the answer is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outrider.pipelines import GenerationConfig, LLMPipeline
from outrider.pipelines.devices.devices import device_names
from outrider.pipelines.errors import reason_of
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.model.processor import GROUP_SIZE
from outrider.pipelines.model.target import Window

from .device import Device
from .errors import DeviceCheckFailed
from .round_trip import PROMPT

NEW_TOKENS = 16
ROUNDING = 0.5  # of logits, between devices
ACCURATE = {GROUP_SIZE: 0, "KV_CACHE_PRECISION": "f32"}  # on the CPU
RUN = "from outrider.export.device_check import main; main()"
NPU_ON_CPU = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU", "NPUW_ONLINE_PIPELINE": "NONE"}


def is_here(device: Device) -> bool:
    """Whether OpenVINO finds such a device on this machine."""
    return any(name.split(".")[0] == device for name in device_names())


def check_on(device: Device, target: Path, announce: Callable[[str], None]) -> dict[str, str]:
    """How the target was checked, by the device's name; empty if there is neither the device nor a stand-in for it.

    The answer is greedy, so each of its tokens must have the highest logit on the CPU, or nearly so, since devices
    round differently. Raises DeviceCheckFailed.
    """
    options: dict[str, Any] = {"speculation": "off"} if device == "GPU" else {}
    how = "checked"
    if not is_here(device):
        if device == "GPU":
            announce("OpenVINO finds no GPU on this machine, so the pair is not checked on one")
            return {}
        announce("OpenVINO finds no NPU on this machine, so its code for NPUs computes on the CPU")
        options, how = NPU_ON_CPU, "checked through OpenVINO's code for NPUs, computing on the CPU"
    announce(f"Comparing an answer for the {device} with the CPU")
    prompt, answered = _answer_apart(device, target, options)
    shortfall = _shortfall(target, prompt, answered)
    if shortfall > ROUNDING:
        raise DeviceCheckFailed(
            f"{target} computes something else on the {device} than on the CPU: a token chosen on the {device} "
            f"has a logit {shortfall:.1f} below the CPU's highest; rounding explains at most {ROUNDING}. Update "
            "OpenVINO and the device's driver, or choose another --group-size."
        )
    return {device: how}


def answer(device: str, target: Path, options: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """The tokens of a prompt and of its greedy answer. Raises what LLMPipeline raises."""
    pipeline = LLMPipeline(target, device, **options)
    prompt = pipeline.tokenizer.encode(PROMPT)
    config = GenerationConfig(max_new_tokens=NEW_TOKENS, ignore_eos=True, mode="off")  # not the model's own
    return prompt, list(pipeline.generate([prompt], config).generations[0].token_ids)


def _answer_apart(device: str, target: Path, options: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """`answer` in a process of its own, since OpenVINO's code for a device can crash. Raises DeviceCheckFailed."""
    program = f"import sys; sys.path[:] = {sys.path!r}; {RUN}"
    command = [sys.executable, "-c", program, device, str(target), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        told = done.stderr.strip().splitlines()
        reason = told[-1] if told and done.returncode > 0 else f"it crashed with status {done.returncode}"
        raise DeviceCheckFailed(
            f"{target} does not run on the {device} ({reason}): choose another --group-size, or another device."
        )
    prompt, tokens = json.loads(done.stdout.splitlines()[-1])
    return prompt, tokens


def _shortfall(target: Path, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """The most by which the logit of an answer's token is below the highest one on the CPU."""
    tokens = [*prompt, *answer[:-1]]
    blocks = range(-(-len(tokens) // BLOCK_SIZE))
    model = PagedModel(target, len(blocks), ACCURATE, exact=False)
    (logits,) = model.forward([Window(tokens, 0, blocks, len(answer))])
    return float((logits.max(axis=1) - logits[np.arange(len(answer)), answer]).max())


def main() -> None:
    """Print `answer` to the three arguments of the process."""
    device, target, options = sys.argv[1:]
    try:
        print(json.dumps(answer(device, Path(target), json.loads(options))))
    except Exception as error:
        sys.exit(reason_of(error))
