"""Many clients at once: does every request end, with exactly what it gets alone?

    python -m tests.benchmark.load --clients 64 --requests 100

Serves the embedded pair; some of the clients go away in the middle of an answer. Exit code 1 where a token differs, a
request fails or does not end, or blocks are still held afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time

from outrider.models import embedded_pair
from outrider.pipelines import LLMPipeline

from ..app.server.load import load, questions
from ..app.server.serving import running, wait_until


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=100, help="of each client")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    pipeline = LLMPipeline(embedded_pair())
    asked = questions(pipeline, given.questions, random.Random(given.seed))
    pool = pipeline.speculation._pool
    with running(pipeline) as served:
        began = time.monotonic()
        outcome = asyncio.run(load(f"{served.url}/v1", asked, given.clients, given.requests, given.seed))
        took = time.monotonic() - began
        wait_until(lambda: pool.num_free == pool.num_blocks)
    for line in outcome.wrong[:10]:
        print(line, file=sys.stderr)
    latencies = sorted(outcome.seconds)
    result = {
        "seed": given.seed, "clients": given.clients, "seconds": round(took, 1), "requests": len(latencies),
        "answered": dict(outcome.answered), "left": outcome.left, "wrong": len(outcome.wrong), "tokens": outcome.tokens,
        "median_s": round(latencies[len(latencies) // 2], 3), "longest_s": round(latencies[-1], 3),
    }  # fmt: skip
    print(json.dumps(result))
    sys.exit(bool(outcome.wrong))


if __name__ == "__main__":
    main()
