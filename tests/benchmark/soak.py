"""Requests of every kind, one after the other and at once: is every answer right, and does the memory stay?

    python -m tests.benchmark.soak --requests 10000

Serves the embedded pair in this process, with a small cache. Clients read, stream, dawdle and go away; the memory is
printed as it goes. Exit code 1 where an answer is not that of a lone run, or blocks or threads are left over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import threading
import time
from pathlib import Path

from outrider.models import embedded_pair
from outrider.pipelines import LLMPipeline

from ..app.server.serving import running, wait_until
from ..app.server.traces import Outcome, asked_alone, trace

ROUNDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--cache-tokens", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    pipeline = LLMPipeline(embedded_pair(), cache_tokens=given.cache_tokens, exact=True)
    threads, wrong, ended = threading.active_count(), 0, 0
    each = max(1, given.requests // (given.clients * ROUNDS))
    print(json.dumps({"seed": given.seed, "clients": given.clients, "requests a round": each * given.clients}))
    with running(pipeline) as served:
        questions = asyncio.run(asked_alone(served.url, given.questions, random.Random(given.seed)))
        began = time.monotonic()
        while ended + wrong < given.requests:
            outcome: Outcome = asyncio.run(trace(served.url, given.clients, questions, each, given.seed + ended))
            wait_until(lambda: served.server.worker.num_open == 0 and served.pool.num_free == served.pool.num_blocks)
            wrong += len(outcome.wrong)
            ended += outcome.ended.total()
            for line in outcome.wrong[:10]:
                print(line, file=sys.stderr)
            latencies = sorted(outcome.seconds)
            print(json.dumps({
                "requests": ended, "wrong": wrong, "seconds": round(time.monotonic() - began),
                "memory_mib": _memory_mib(), "threads": threading.active_count(), "open_files": _num_files(),
                "median_s": round(latencies[len(latencies) // 2], 2), "longest_s": round(latencies[-1], 2),
            }), flush=True)  # fmt: skip
    left = threading.active_count() - threads
    print(json.dumps({"wrong": wrong, "threads_left": left}))
    sys.exit(bool(wrong or left > 0))


def _memory_mib() -> int | None:
    """What of this process is in memory; None where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    lines = status.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) >> 10


def _num_files() -> int | None:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else None


if __name__ == "__main__":
    main()
