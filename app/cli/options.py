"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from outrider.models.pulled import find_pair
from outrider.pipelines import config

PairFolder = Annotated[
    Path | None,
    typer.Option("--pair", parser=find_pair, metavar="PAIR",
                 help="The name of a pulled pair; or the folder of a pair made by `outrider export`, or of an "
                 "exported model.",
                 show_default="the pair that comes with Outrider"),
]  # fmt: skip

Reference = Annotated[Path | None, typer.Option("--reference", help="A folder of text files to draft quotations from.")]

Head = Annotated[
    Path | None,
    typer.Option("--head", help="An exported head to draft with in place of the pair's own.", show_default=False),
]

Device = Annotated[str, typer.Option(help="Device of the model: CPU, NPU, GPU, GPU.1.")]

DraftDevice = Annotated[str, typer.Option(help="Device of the draft model: CPU, NPU, GPU, GPU.1.")]

Engine = Annotated[
    Literal["outrider", "genai"] | None,
    typer.Option(
        help="What runs the model: Outrider's own engine or OpenVINO GenAI.",
        show_default="genai on a GPU, else outrider",
    ),
]

Speculation = Annotated[
    Literal["auto", "off", "lookup", "draft"] | None,
    typer.Option(
        help="How OpenVINO GenAI drafts, for all requests; Outrider's engine takes a mode with each.",
        show_default="auto with genai",
    ),
]

Fallback = Annotated[
    Literal["CPU"] | None, typer.Option(case_sensitive=False, help="Where requests go on if the device fails.")
]

Property = Annotated[
    list[str] | None,
    typer.Option("--property", metavar="NAME=VALUE",
                 help="A property of OpenVINO for the model, such as MAX_PROMPT_LEN=2048 on an NPU; those that begin "
                 "with NPU also go to a draft model there. Can be repeated."),
]  # fmt: skip

Exact = Annotated[
    bool | None,
    typer.Option("--exact/--no-exact", show_default="where the cost is small",
                 help="Whether to guarantee the same text in every mode for the same seed, at any cost in speed."),
]  # fmt: skip

Port = Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)]

KeyFile = Annotated[
    Path | None, typer.Option("--api-key-file", help="A file of API keys, one per line; clients must send one of them.")
]

AllowedHost = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", help="Another host name of this machine; can be repeated."),
]

TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="A certificate in PEM, to serve over HTTPS.")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="The certificate's private key, in PEM.")]

LOCAL = "127.0.0.1"
Acceptance = Annotated[
    config.Acceptance,
    typer.Option(
        help="The rule by which drafted tokens are kept. All but exact are lossy: drafts can change the text."
    ),
]

Mode = Annotated[config.Mode, typer.Option(help="What drafts; auto is whatever is expected to be fastest.")]

CacheTokens = Annotated[
    int | None,
    typer.Option(
        "--cache-tokens",
        help="How many tokens the key-value cache holds, for the prompts and answers of all requests.",
        show_default="16384; with genai as many as needed",
        min=2,
    ),
]
