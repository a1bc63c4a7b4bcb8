"""llama.cpp through llama-cpp-python: plain and prompt lookup, Q4_0."""

from __future__ import annotations

import time
from importlib.metadata import version

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from .base import CannotRun, Question, Reply, Setup
from .gguf_file import write_q4_0

DRAFT_LENGTH, MAX_NGRAM = 5, 3


class LlamaCpp:
    """One request at a time, which is what its Python interface offers."""

    modes = ("plain", "prompt lookup")
    biased = ()

    def __init__(self, setup: Setup) -> None:
        file = setup.scratch / "target-q4_0.gguf"
        if not file.exists():
            write_q4_0(setup.checkpoints / "target", file)
        lookup = LlamaPromptLookupDecoding(max_ngram_size=MAX_NGRAM, num_pred_tokens=DRAFT_LENGTH)
        self._models = {
            mode: Llama(
                str(file),
                n_ctx=setup.max_context,
                n_threads=setup.threads,
                n_threads_batch=setup.threads,
                draft_model=draft,
                logits_all=draft is not None,  # it keeps no logits of drafts otherwise
                verbose=False,
            )
            for mode, draft in (("plain", None), ("prompt lookup", lookup))
        }
        self.versions = {"llama-cpp-python": version("llama-cpp-python")}

    def answer(self, mode: str, question: Question) -> Reply:
        if len(question.prompts) > 1:
            raise CannotRun("llama-cpp-python answers one request at a time")
        model = self._models[mode]
        model.reset()  # or it would find the prompt read by the last answer
        temperature = 0.0 if question.is_greedy else question.options["temperature"]
        model.set_seed(question.options.get("rng_seed", 0))
        tokens: list[int] = []
        ttft_s = None
        began = time.perf_counter()
        written = model.generate(question.prompts[0], top_k=0, top_p=1.0, min_p=0.0, temp=temperature)
        for token in written:
            ttft_s = ttft_s or time.perf_counter() - began
            tokens.append(token)
            if token == question.eos or len(tokens) == question.options["max_new_tokens"]:
                break
        return Reply((tuple(tokens),), ttft_s, time.perf_counter() - began)
