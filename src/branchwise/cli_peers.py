"""The command `branchwise bench peers`: reads arguments, calls `bench.peers`, prints. `cli` gives it its name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from .cli_drafting import DraftModel, Head, check_specs
from .cli_options import Debug, Dtype, Model, Threads, check_results, counted, finish_bench, set_threads, words_of
from .cli_prompt import Chat, MaxNewTokens, Temperature


def peers(
    prompts: Annotated[
        Path | None,
        typer.Argument(help="As for `branchwise bench prompts`.", show_default="a dozen of its own"),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "--peers",
            help="Peers and PEER:METHOD, comma between: transformers, llama.cpp, openvino-genai, branchwise; on "
            "compiled engines branchwise/native-int4, branchwise/openvino-int8 (bf16, f32); openvino-genai:lookup-3.",
            show_default="all peers, native in bf16 and int4",
        ),
    ] = "",
    model: Model = "default",
    gguf: Annotated[
        Path | None,
        typer.Option(help="The same weights as a GGUF file.", show_default="a named model's own, fetched once"),
    ] = None,
    head: Head = None,
    draft_model: DraftModel = None,
    limit_per_category: Annotated[int | None, typer.Option(help="Prompts per category; its topics take turns.")] = None,
    categories: Annotated[str, typer.Option(help="Only these categories; comma between.")] = "",
    topics: Annotated[str, typer.Option(help="Only these topics; comma between.")] = "",
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    seed: Annotated[int, typer.Option(help="Prompt i samples with seed + i.")] = 0,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the result, rows included, to a file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a bar per configuration: a .png, .svg or .pdf.")] = None,
    chat: Chat = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Other engines beside this library: same weights, prompts, token limits and threads, in turns.

    Every peer runs in a process of its own, one at a time; prefill is not counted. Tables come first, the last line is
    one JSON object. Exits with 1 when a configuration failed, a missing package included; its error is listed. The
    extra peers brings the packages.
    """
    import torch

    from .bench.peers.builtin_prompts import BUILTIN_PROMPTS
    from .bench.peers.chart import plot_peers
    from .bench.peers.configuration import configurations
    from .bench.peers.job import PeersJob, run_peers
    from .bench.peers.report import print_peers
    from .bench.prompts import choose_prompts, read_prompts
    from .bench.sampling import Sampling

    asked = configurations(words_of(methods), with_head=head is not None, with_model=draft_model is not None)
    check_specs([one.spec for one in asked], draft_model, head)
    if gguf is not None and not gguf.is_file():
        raise ValueError(f"there is no file {str(gguf)!r}; --gguf names the model's weights as a GGUF file")
    check_results(json_path, plot)
    set_threads(threads)
    job = PeersJob(
        configurations=asked,
        prompts=choose_prompts(
            BUILTIN_PROMPTS if prompts is None else read_prompts(prompts),
            categories=words_of(categories),
            topics=words_of(topics),
            limit_per_category=limit_per_category,
        ),
        model=os.path.expanduser(model),
        gguf=gguf,
        dtype=dtype,
        threads=torch.get_num_threads(),
        max_new_tokens=max_new_tokens,
        temperature=Sampling(temperature).temperature,
        seed=seed,
        chat=chat,
        head=head,
        draft_model=draft_model,
    )
    with counted("prompts", len(job.prompts)) as tell:
        record = run_peers(job, progress=tell)
    print_peers(record)
    finish_bench(record, json_path, plot, plot_peers)
