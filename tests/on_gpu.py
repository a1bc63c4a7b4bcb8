"""What stands in for a GPU and its memory: the code is that for a GPU, and the CPU computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import openvino as ov
import pytest

from outrider.pipelines.devices import devices, gpu_model
from outrider.pipelines.model.processor import limited_properties

NAN = 0xFF  # as a byte of f16


class HostContext:
    """Stands in for a device's memory: what was never written is no number."""

    def __init__(self) -> None:
        self.tensors: list[ov.Tensor] = []

    def create_tensor(self, kind: ov.Type, shape: ov.Shape, properties: dict[str, Any]) -> ov.Tensor:
        tensor = ov.Tensor(kind, shape)
        tensor.data.view(np.uint8)[...] = NAN
        self.tensors.append(tensor)
        return tensor


@contextmanager
def gpu_present() -> Iterator[None]:
    """Meanwhile OpenVINO seems to find the devices "GPU.0" and "GPU.1"."""
    compile_model = ov.Core.compile_model

    def compile_on_cpu(core: ov.Core, model: Any, device: str, properties: dict[str, Any]) -> ov.CompiledModel:
        if device.startswith("GPU"):
            device, properties = "CPU", {"INFERENCE_PRECISION_HINT": "f32", **properties, **limited_properties()}
        return compile_model(core, model, device, properties)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "device_names", lambda: ("CPU", "GPU.0", "GPU.1"))
        patch.setattr(ov.Core, "compile_model", compile_on_cpu)
        patch.setattr(gpu_model, "SETTLED_S", 0.0)
        patch.setattr(ov.Core, "get_default_context", lambda core, device: HostContext())
        yield
