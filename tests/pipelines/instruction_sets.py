"""The exactness suites within each set of instructions that this processor has, as lesser processors would run them.

    python -m tests.pipelines.instruction_sets      (make exactness)

oneDNN is kept to a set by ONEDNN_MAX_CPU_ISA. OpenVINO's own kernels, those of attention and of normalization among
them, do not follow that variable: they use what the processor has. So this shows what matrix products do elsewhere, and
no more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

# By the flag that Linux shows for each.
SETS = {
    "AVX2": "avx2",
    "AVX2_VNNI": "avx_vnni",
    "AVX512_CORE": "avx512bw",
    "AVX512_CORE_VNNI": "avx512_vnni",
    "AVX512_CORE_BF16": "avx512_bf16",
    "AVX10_1_512_AMX": "amx_int8",
}
FOLDER = Path(__file__).parent
SUITES = (
    "model/test_rows.py",
    "model/test_paged_model.py",
    "model/test_taps.py",
    "model/test_split_model.py",
    "model/test_partial_sums.py",
    "model/test_exactness.py",
    "engine/test_distribution.py",
    "speculation/drafters/test_self_speculative.py",
)


def available() -> list[str]:
    """The sets of this processor; none where the system does not tell."""
    path = Path("/proc/cpuinfo")
    flags = set(path.read_text().split()) if path.is_file() else set()
    return [name for name, flag in SETS.items() if flag in flags]


def run(
    name: str, tests: Iterable[str], *options: str, on_all_processors: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run tests of this folder within a set of instructions, on all processors or on those of this process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *options]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}

    def take_all_processors() -> None:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))

    return subprocess.run(
        [*command, *(str(FOLDER / test) for test in tests)],
        env={**environment, "ONEDNN_MAX_CPU_ISA": name},
        cwd=FOLDER.parent.parent,
        preexec_fn=take_all_processors if on_all_processors and hasattr(os, "sched_setaffinity") else None,
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> None:
    """Print what came of each set; exit code 1 where a test failed."""
    failed = False
    for name in available():
        ended = run(name, SUITES, "-n", "2")
        failed |= ended.returncode != 0
        print(f"{name}: {ended.stdout if ended.returncode else ended.stdout.strip().splitlines()[-1]}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
