"""The routes of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response, Security
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.pipelines import LLMPipeline
from outrider.pipelines.text.prompt import Inputs

from ..reasoning import NewParser, reasoning_parser_for, without_reasoning
from .admission import Access, Gate
from .call_grammar import refusal
from .chat_completions import ChatReply
from .completions import CompletionReply
from .errors import FORM, ApiError, add_error_handlers
from .events import EventStream, while_connected
from .generation_options import options_of
from .limits import Limits
from .logprobs import LogprobsFormatter
from .messages import history_of
from .metrics import Metrics
from .reply import Reply, Terms
from .response_format import ResponseFormat
from .responses import ChatCompletion, Completion, ErrorBody, Health, Model, ModelList
from .schema import ChatRequest, CompletionRequest, GenerationRequest
from .worker import Answers, Worker

COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
STREAM = {"content": {"text/event-stream": {"schema": EVENT}}}


@dataclass(frozen=True, slots=True)
class Server:
    """A pipeline under the name that clients use, the worker that runs it, and its metrics.

    began: Unix time of the start, in seconds.
    reasoning_parser: makes what separates the reasoning of an answer.
    """

    pipeline: LLMPipeline
    name: str
    worker: Worker
    metrics: Metrics
    began: int
    reasoning_parser: NewParser

    @classmethod
    def of(cls, pipeline: LLMPipeline, name: str, limits: Limits) -> Server:
        metrics = Metrics(pipeline.backend)
        worker = Worker(pipeline, limits, metrics)
        return cls(pipeline, name, worker, metrics, int(time.time()), reasoning_parser_for(pipeline.tokenizer))

    @property
    def model(self) -> Model:
        return Model(
            id=self.name,
            object="model",
            created=self.began,
            owned_by="outrider",
            max_context=self.pipeline.longest_text,
            modes=list(self.pipeline.modes),
        )

    async def chat(self, asked: ChatRequest, request: Request) -> Response:
        self.check_model(asked.model)
        limit = asked.max_completion_tokens or asked.max_tokens
        options = options_of(asked, self.pipeline, limit, asked.num_logprobs)
        response_format = ResponseFormat.of(asked, self.pipeline.tokenizer, self.reasoning_parser().stage)
        if response_format.structure is not None:
            options["structured_output_config"] = response_format.structure
        terms = self._terms(asked, options, 1, await self._formatter(asked.num_logprobs))
        reasoning = self.reasoning_parser if response_format.may_reason else without_reasoning
        reply = ChatReply(terms, response_format.parser, reasoning)
        history = history_of(asked.messages, response_format.tools)
        try:
            return await self._answer(asked, request, history, options, reply, "messages")
        except ApiError as error:
            if error.param != FORM or not response_format.tools:
                raise
            raise refusal(response_format.structure, error) from error

    async def complete(self, asked: CompletionRequest, request: Request) -> Response:
        self.check_model(asked.model)
        options = options_of(asked, self.pipeline, asked.max_tokens or COMPLETION_TOKENS, asked.num_logprobs)
        options["apply_chat_template"] = False
        formatter = await self._formatter(asked.num_logprobs)
        reply = CompletionReply(self._terms(asked, options, len(asked.prompts), formatter))
        return await self._answer(asked, request, asked.prompts, options, reply, "prompt")

    def check_model(self, name: str, param: str | None = "model") -> None:
        if name != self.name:
            raise ApiError(404, f"This server does not have that model: use {self.name!r}.", param, "model_not_found")

    async def _formatter(self, num_logprobs: int | None) -> LogprobsFormatter | None:
        if num_logprobs is None:
            return None
        return await asyncio.to_thread(LogprobsFormatter, self.pipeline.tokenizer, num_logprobs)

    def _terms(
        self, asked: GenerationRequest, options: dict[str, Any], num_prompts: int, logprobs: LogprobsFormatter | None
    ) -> Terms:
        return Terms(
            model=self.name,
            seed=options["rng_seed"],
            mode=options["mode"],
            acceptance=options.get("acceptance", self.pipeline.get_generation_config().acceptance),
            num_prompts=num_prompts,
            answers_each=options["num_return_sequences"],
            tells_usage=asked.includes_usage,
            logprobs=logprobs,
        )

    async def _answer(
        self,
        asked: GenerationRequest,
        request: Request,
        inputs: Inputs,
        options: dict[str, Any],
        reply: Reply,
        prompt_field: str,
    ) -> Response:
        num_bytes = len(await request.body())
        answers = await self.worker.open(inputs, options, reply.num_answers, prompt_field, num_bytes)
        if asked.stream:
            return EventStream(_chunks(reply, answers), answers.close)
        try:
            whole = await while_connected(request.receive, _whole(reply, answers))
        finally:
            answers.close()
        return Response() if whole is None else _json(whole)  # None: the client has gone


def create_api(server: Server, access: Access) -> FastAPI:
    """The ASGI application. FastAPI's documentation pages are off, since they load scripts from other hosts."""
    worker = server.worker

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        await asyncio.to_thread(worker.close)

    api = FastAPI(
        title="Outrider", version=version("outrider"), lifespan=lifespan, docs_url=None, redoc_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    add_error_handlers(api, server.metrics)
    api.add_middleware(_head_as_get)
    api.add_middleware(
        Gate, access=access, limits=worker.limits, metrics=server.metrics, check_running=worker.check_running
    )
    if access.origins:
        api.add_middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
            allow_private_network=True,  # browsers ask for it where a public page sends a request to this machine
            expose_headers=["Retry-After", "X-Should-Retry"],
        )
    routes = APIRouter(responses=ERRORS, dependencies=[Security(HTTPBearer(auto_error=False))] if access.keys else [])

    @routes.post("/v1/chat/completions", responses={200: {"model": ChatCompletion, **STREAM}})
    async def chat_completions(asked: ChatRequest, request: Request) -> Response:
        """Create a chat completion."""
        return await server.chat(asked, request)

    @routes.post("/v1/completions", responses={200: {"model": Completion, **STREAM}})
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        """Create a text completion."""
        return await server.complete(asked, request)

    @routes.get("/v1/models")
    async def models() -> ModelList:
        """List the models."""
        return ModelList(object="list", data=[server.model])

    @routes.get("/v1/models/{model_id}")
    async def model(model_id: str) -> Model:
        """Describe one model."""
        server.check_model(model_id, None)
        return server.model

    @routes.get("/metrics", responses={200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}})
    async def metrics() -> Response:
        """Metrics in the Prometheus text format."""
        return Response(server.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    api.include_router(routes)

    @api.get("/health", response_model=Health, responses={503: {"model": Health}, "4XX": {"model": ErrorBody}})
    async def health() -> JSONResponse:
        """Whether the server can answer, and whether it answers exactly as without drafts."""
        trouble = await worker.trouble()
        state = "failed" if trouble else "ok" if worker.is_ready else "warming up"
        told = {"status": state, "exact": worker.exact} | ({"reason": trouble} if trouble else {})
        return JSONResponse(told, 200 if state == "ok" else 503)

    return api


def _head_as_get(app: ASGIApp) -> ASGIApp:
    """Answers HEAD wherever GET is answered; uvicorn leaves out the body."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send)

    return answer


async def _chunks(reply: Reply, answers: Answers) -> AsyncIterator[BaseModel]:
    for chunk in reply.first_chunks():
        yield chunk
    async for index, piece in answers:
        for chunk in reply.chunks(index, piece):
            yield chunk


async def _whole(reply: Reply, answers: Answers) -> BaseModel:
    async for index, piece in answers:
        reply.add(index, piece)
    return reply.whole()


def _json(body: BaseModel) -> Response:
    return Response(body.model_dump_json(exclude_unset=True), media_type="application/json")
