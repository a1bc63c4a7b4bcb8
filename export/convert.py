"""Converts a checkpoint to an IR with optimum-intel, and compresses its weights with NNCF."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import openvino as ov

from outrider.models.errors import NoSuchModel
from outrider.pipelines.errors import UnsupportedModel

from .checkpoint import Checkpoint, require_weights
from .compression import Compression
from .errors import ConversionFailed
from .quiet import quiet
from .renamed import known_form

TASK = "text-generation-with-past"
MODEL = "openvino_model.xml"
GENERATION = "generation_config.json"
ADVICE = "choose another model or another weight format"
WEIGHT_TYPES = {"f32", "f16", "bf16", "i8", "u8", "i4", "u4"}


def convert(checkpoint: Checkpoint, folder: Path, half: bool) -> None:
    """Write the checkpoint's IR with uncompressed weights, and its configuration, to `folder`.

    half: store the weights in fp16; otherwise they keep the precision of the checkpoint, but fp64 becomes
        fp32, the precision of caches.

    Raises UnsupportedModel for an architecture that optimum-intel does not know, NoSuchModel for a checkpoint that
    lacks weights, and ConversionFailed.
    """
    import torch
    import transformers
    from optimum.exporters.openvino import main_export
    from optimum.exporters.tasks import TasksManager
    from optimum.intel import OVConfig
    from optimum.intel.utils.import_utils import is_transformers_version
    from transformers import AutoConfig

    with quiet(), known_form(checkpoint) as known_folder:
        config = AutoConfig.from_pretrained(known_folder, trust_remote_code=checkpoint.remote_code)
        model_type = config.model_type
        try:
            known = TasksManager.get_supported_tasks_for_model_type(
                model_type, exporter="openvino", library_name="transformers"
            )
        except KeyError:
            known = {}
        if TASK not in known:
            raise UnsupportedModel(
                f"{checkpoint.source} is a {model_type} model, which optimum-intel cannot convert for text generation: "
                "choose another architecture, or a newer optimum-intel."
            )
        newest = getattr(getattr(known[TASK], "func", None), "MAX_TRANSFORMERS_VERSION", None)
        if newest is not None and is_transformers_version(">", newest):
            raise UnsupportedModel(
                f"{checkpoint.source} is a {model_type} model, which optimum-intel converts with transformers up to "
                f"{newest} only, and {transformers.__version__} is installed: choose another architecture."
            )
        stored = "float16" if half else "float32" if config.dtype == torch.float64 else None
        try:
            with _whole(checkpoint.source) as loaded:
                main_export(
                    str(known_folder),
                    folder,
                    task=TASK,
                    library_name="transformers",
                    # Not OVConfig(dtype="fp16"), which rounds the frequencies of the position embedding as well.
                    ov_config=OVConfig(),
                    model_loading_kwargs={"torch_dtype": stored} if stored else {},
                    trust_remote_code=checkpoint.remote_code,
                    local_files_only=True,
                )
        except NoSuchModel:
            raise
        except Exception as error:
            raise ConversionFailed(
                f"optimum-intel cannot convert {checkpoint.source}: {_first_line(error)} ({_advice(checkpoint)})"
            ) from error
    for defaults in loaded:
        if defaults is not None and not (folder / GENERATION).exists():
            save_defaults(defaults, folder)


def save_defaults(defaults: Any, folder: Path) -> None:
    """Write the generation configuration of a model as it was read, which `save_pretrained` refuses for some that it
    reads: a temperature without `do_sample` is one."""
    defaults.to_json_file(folder / GENERATION)


def compress(folder: Path, compression: Compression, source: str) -> None:
    """Compress the weights of the IR in `folder`. `source` is for messages. Raises ConversionFailed."""
    import nncf
    from nncf.parameters import BackupMode, CompressWeightsMode
    from nncf.quantization.advanced_parameters import AdvancedCompressionParameters, GroupSizeFallbackMode

    settings = compression.settings
    kind = "sym" if settings.pop("symmetric") else "asym"
    mode = CompressWeightsMode(f"{compression.weights}_{kind}")
    if compression.weights == "int4":
        settings["backup_mode"] = BackupMode(f"int8_{kind}")  # for embeddings and the weights outside the ratio
    advanced = AdvancedCompressionParameters(group_size_fallback_mode=GroupSizeFallbackMode.ADJUST)
    whole, smaller = folder / MODEL, folder / f"compressed_{MODEL}"
    with quiet():
        model = ov.Core().read_model(whole)
        try:
            model = nncf.compress_weights(model, mode=mode, advanced_parameters=advanced, **settings)
            _let_cache_be_quantized(model)
            ov.save_model(model, smaller, compress_to_fp16=False)
        except Exception as error:
            raise ConversionFailed(
                f"NNCF cannot compress {source} to {mode.value}: {_first_line(error)} ({ADVICE})"
            ) from error
    del model  # it maps the files that are replaced next
    gc.collect()
    for suffix in (".xml", ".bin"):
        smaller.with_suffix(suffix).replace(whole.with_suffix(suffix))


def precisions(folder: Path) -> dict[str, int]:
    """The number of weights, scales and zero points that the IR stores in each element type."""
    counts: Counter[str] = Counter()
    for node in ov.Core().read_model(folder / MODEL).get_ops():
        if node.get_type_name() == "Constant" and len(node.get_output_shape(0)) > 1:
            counts[node.get_output_element_type(0).get_type_name()] += prod(node.get_output_shape(0))
    return {name: count for name, count in counts.most_common() if name in WEIGHT_TYPES}


@contextmanager
def _whole(source: str) -> Iterator[list[Any]]:
    """The generation configurations of the models that are loaded meanwhile, by whatever calls transformers.

    Raises NoSuchModel where a model is loaded without some of its weights.
    """
    from transformers import PreTrainedModel

    plain, loaded = PreTrainedModel.__dict__["from_pretrained"], []

    def from_pretrained(kind: type, *arguments: Any, output_loading_info: bool = False, **options: Any) -> Any:
        model, info = plain.__func__(kind, *arguments, output_loading_info=True, **options)
        require_weights(source, info["missing_keys"])
        loaded.append(getattr(model, "generation_config", None))
        return (model, info) if output_loading_info else model

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    try:
        yield loaded
    finally:
        PreTrainedModel.from_pretrained = plain


def _let_cache_be_quantized(model: ov.Model) -> None:
    """Remove the hint for uncompressed models that keeps the key-value cache in f16."""
    if model.has_rt_info(["runtime_options", "KV_CACHE_PRECISION"]):
        options = model.get_rt_info("runtime_options").value
        del options["KV_CACHE_PRECISION"]
        model.set_rt_info(options, "runtime_options")


def _advice(checkpoint: Checkpoint) -> str:
    quantized = checkpoint.config().get("quantization_config")
    if not isinstance(quantized, dict):
        return ADVICE
    return f"its weights are quantized already, with {quantized.get('quant_method')}: choose those that are not"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
