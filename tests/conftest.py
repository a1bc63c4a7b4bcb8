"""What every test folder shares."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from outrider.pipelines.privacy import keep_private

keep_private()

# What is measured of a pair, and what is pulled, goes to folders of the tests' own, those of every process they start
# too. They go when the tests end.
OWN_FOLDER = tempfile.TemporaryDirectory(prefix="outrider-tests-", ignore_cleanup_errors=True)
for variable in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
    os.environ[variable] = str(Path(OWN_FOLDER.name, variable))

MOST_COMPILED = 24  # models that each process of tests keeps: 20 MB each, and the kernels of passes

# A shell that starts the tests in the background ignores the interrupt, and so would every process they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_to_a_share() -> None:
    """Keep each of several processes of tests to processors of its own, or to one where there are more processes than
    processors: a model whose threads wait for each other on shared processors takes twice as long."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if number and hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        first, count = int(number) % len(processors), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.sched_setaffinity(0, processors[first::count])


keep_to_a_share()

# A pass of a real model, and drawing an example, can take long on a busy machine, which is no failure. Every run tries
# the same examples, unless HYPOTHESIS_PROFILE=search asks for others; what a failing one needs to be run again is then
# printed.
SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, database=None, **SLOW)
settings.register_profile("search", print_blob=True, **SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_collection_finish() -> None:
    """Spare every collection of garbage the hundred thousands of objects that modules consist of."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def quick_measuring() -> Iterator[int]:
    """Measure costs, the price of exactness, ways to compile a model and GenAI's ways to draft by as few passes as can
    be, also on a busy machine, compile few kernels ahead, and try no other numbers of threads: how fast a pair is
    matters to no test but those of measuring. Gives the number of passes that programs take at most."""
    from outrider.pipelines.devices import genai_loading
    from outrider.pipelines.model import contest, price, timing, tuning
    from outrider.pipelines.speculation import runtime

    most_repeats = timing.MOST_REPEATS
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(contest, "TURNS_S", 0.0)
        monkeypatch.setattr(price, "PRICED_S", 0.0)
        monkeypatch.setattr(price, "TURN_S", 0.0)
        monkeypatch.setattr(timing, "MOST_REPEATS", timing.FEWEST_REPEATS)
        monkeypatch.setattr(tuning, "other_numbers", lambda own: [])
        monkeypatch.setattr(genai_loading, "TRIED_S", 0.0)
        monkeypatch.setattr(runtime, "MEASURE_S", 0.2)
        monkeypatch.setattr(runtime, "PREPARED_S", 0.1)
        yield most_repeats


@pytest.fixture
def thorough_measuring(quick_measuring: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure each size as programs do."""
    from outrider.pipelines.model import timing

    monkeypatch.setattr(timing, "MOST_REPEATS", quick_measuring)


@pytest.fixture(scope="session", autouse=True)
def models_compiled_once() -> Iterator[None]:
    """Pipelines whose models are the same share what OpenVINO made of them, and the kernels that passes added to it,
    which takes longer than most tests otherwise. Their requests, and so their caches, stay their own."""
    import openvino as ov

    compile_model = ov.Core.compile_model
    compiled: dict[tuple[str, ...], ov.CompiledModel] = {}  # the latest last

    def compile_once(core: ov.Core, model: Any, device: str, *given: Any) -> ov.CompiledModel:
        if not isinstance(model, ov.Model):
            return compile_model(core, model, device, *given)
        properties = (f"{name}={value}" for each in given for name, value in sorted(each.items()))
        key = (digest(model), device, *properties)
        compiled[key] = compiled.pop(key, None) or compile_model(core, model, device, *given)
        if len(compiled) > MOST_COMPILED:
            del compiled[next(iter(compiled))]
        return compiled[key]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(ov.Core, "compile_model", compile_once)
        yield


def digest(model: Any) -> str:
    """Tells a model from all that compute anything else."""
    found, places = hashlib.sha256(), dict[str, int]()
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_friendly_name()
        places[name] = len(places)
        read = [(places[each.get_node().get_friendly_name()], each.get_index()) for each in node.input_values()]
        found.update(f"{kind}{read}".encode())
        if kind == "Constant":
            found.update(np.ascontiguousarray(node.data).view(np.uint8).data)
        else:
            found.update(f"{node.get_attributes()}{name if kind == 'Parameter' else ''}".encode())
        for output in node.outputs():
            found.update(f"{output.get_element_type()}{output.partial_shape}{sorted(output.get_names())}".encode())
    return found.hexdigest()


@pytest.fixture(scope="session", autouse=True)
def tokenizers_loaded_once() -> Iterator[None]:
    """OpenVINO GenAI loads a tokenizer once, which takes it as long as compiling a small model. Nothing changes it."""
    import openvino_genai

    from outrider.models.digest import sha256
    from outrider.pipelines.text import tokenizer

    loaded: dict[tuple[tuple[str, str], ...], openvino_genai.Tokenizer] = {}

    def load_once(folder: Path) -> openvino_genai.Tokenizer:
        files = (file for file in sorted(folder.iterdir()) if file.is_file() and file.stem != "openvino_model")
        contents = tuple((file.name, sha256(file)) for file in files)
        if contents not in loaded:
            loaded[contents] = openvino_genai.Tokenizer(folder)
        return loaded[contents]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tokenizer, "openvino_genai", SimpleNamespace(Tokenizer=load_once))
        yield


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """The folder that `make` fills, for all processes of tests together."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            make(root / f"{name}.being_made").rename(folder)
    return folder


@pytest.fixture(scope="session")
def embedded_pair() -> Path:
    """The folder of the pair that comes with Outrider."""
    from outrider import models

    return models.embedded_pair()


@pytest.fixture(scope="session")
def drafting_pairs(embedded_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of pairs of the embedded target that draft in other ways, see `drafting_pairs.WAYS`."""

    def make(folder: Path) -> Path:
        from tests.drafting_pairs import make_pairs

        return make_pairs(embedded_pair, folder)

    return made_once(tmp_path_factory, "drafting_pairs", make)


@pytest.fixture(scope="session")
def npu_pair(embedded_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pair that comes with Outrider with symmetric int4 weights, as an NPU wants it."""

    def make(folder: Path) -> Path:
        from outrider.export.compression import Compression
        from tests.on_npu import make_pair

        return make_pair(embedded_pair, folder, Compression("int4", group_size=64))

    return made_once(tmp_path_factory, "npu_pair", make)


@pytest.fixture(scope="session")
def npu_draft_pair(npu_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a draft model as an NPU wants it, too."""

    def make(folder: Path) -> Path:
        from outrider.export.compression import Compression
        from tests.on_npu import make_pair_with_draft

        return make_pair_with_draft(npu_pair, folder, Compression("int4", group_size=64))

    return made_once(tmp_path_factory, "npu_draft_pair", make)
