"""One user and an idle server: how much longer a request takes through HTTP than in the library.

    library   Speculator.generate in this process
    server    POST /v1/completions to a server in a thread of this process, answered as a stream of events; the client
              is a process of its own, as clients are

Both have an engine or a speculator of their own over the same weights, drafter and budget "auto"; prompts alternate
between them and the order turns, so that neither always comes second. Times are from asking to the last token, prompts
included. The bar is a median ratio of 1.05 (exit code 1 when missed). The last line is one JSON object.

    python bench/server_latency.py --prompts prompts.jsonl
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import IO

import httpx
import torch

from branchwise import Engine, Speculator
from branchwise.bench.prompts import encode_prompt, read_prompts
from branchwise.bench.provenance import model_facts, provenance
from branchwise.hub import load, resolve
from branchwise.serve.run import start_in_background
from branchwise.serve.settings import ServerSettings

BAR = 1.05


def through_server(client: httpx.Client, prompt: list[int], new_tokens: int) -> tuple[float, int]:
    """Seconds, and tokens that came."""
    body = {
        "prompt": prompt,
        "max_tokens": new_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, last = time.perf_counter(), ""
    with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                last = line
    seconds = time.perf_counter() - began
    return seconds, json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"]


def run_client(url: str) -> None:
    """The client's process: a question a line on stdin, its answer on stdout."""
    with httpx.Client(base_url=url, timeout=600) as client:
        for line in sys.stdin:
            print(json.dumps(through_server(client, *json.loads(line))), flush=True)


@contextmanager
def client_of(url: str) -> Iterator[tuple[IO[str], IO[str]]]:
    """Where to write questions to such a process, and where to read its answers."""
    command = [sys.executable, __file__, "--client", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.stdin, process.stdout
        process.stdin.close()


def ask(pipes: tuple[IO[str], IO[str]], prompt: list[int], new_tokens: int) -> tuple[float, int]:
    """`through_server` in the client's process."""
    print(json.dumps([prompt, new_tokens]), file=pipes[0], flush=True)
    seconds, tokens = json.loads(pipes[1].readline())
    return seconds, tokens


def in_library(speculator: Speculator, prompt: list[int], new_tokens: int) -> tuple[float, int]:
    """The same."""
    began = time.perf_counter()
    output = speculator.generate(torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False)
    return time.perf_counter() - began, output.shape[1] - len(prompt)


def main() -> int:
    """Measures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="a file as `branchwise bench` takes it")
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float64"))
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--new", type=int, default=96, help="new tokens per request")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model, dtype=getattr(torch, args.dtype))
    every = read_prompts(args.prompts)
    prompts = [encode_prompt(tokenizer, prompt.text) for prompt in every[:: max(1, len(every) // args.requests)]]
    speculator = Speculator(model, tokenizer)
    server = start_in_background(Engine(model, tokenizer, prefix_bytes=0), ServerSettings("bench"))
    pairs = []
    with client_of(server.url) as pipes:
        ways = {
            "library": lambda prompt: in_library(speculator, prompt, args.new),
            "server": lambda prompt: ask(pipes, prompt, args.new),
        }
        for way in ways.values():  # warm-up
            way(prompts[0])
        for index, prompt in enumerate(prompts[: args.requests]):
            names = list(ways) if index % 2 == 0 else list(reversed(ways))
            timed = {name: ways[name](prompt) for name in names}
            pairs.append({name: {"seconds": timed[name][0], "tokens": timed[name][1]} for name in ways})
    server.should_exit = True
    per_token = [
        (pair["server"]["seconds"] / pair["server"]["tokens"])
        / (pair["library"]["seconds"] / pair["library"]["tokens"])
        for pair in pairs
    ]
    ratio = median(per_token)
    print(f"{len(pairs)} requests: a token takes {ratio:.3f} times as long through the server (median; bar {BAR})")
    facts = model_facts(args.model, resolve(args.model), model)
    settings = {"ratio": ratio, "ratios": per_token, "pairs": pairs, "new_tokens": args.new, "dtype": args.dtype}
    print(json.dumps({**settings, "provenance": provenance(model=facts)}))
    return 1 if ratio > BAR else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        sys.exit(run_client(sys.argv[2]))
    sys.exit(main())
