"""Thousands of requests of all sorts at a server: nothing leaks, and every well-formed request is answered once.

A fixed number of clients keeps a server busy with completions of mixed lengths; a share of the streams is left in the
middle, another share of the requests is malformed. Afterwards, and while it runs:

    answered      every well-formed request that was not left got one complete answer; every malformed one a 400
    lanes         none is in use at the end, no request runs, waits or is read, and the pool holds no block of anybody
    memory        the median resident size in the last quarter of the time is at most 2% above that in the second

What is bounded is filled first, so that only what has no bound can grow later. torch's matrix library keeps what it
compiled for every number of rows that it has multiplied (with the default model about 2 MB per number of rows), so the
model reads a text of every length once, and says what follows each token of it. Then, before anything is counted, every
client sends one prompt a quarter longer than the longest that follows, all at once: the pool of keys and values is as
long as it gets and the store of prompts is full. The time whose quarters are compared begins when the last of these is
answered. Nothing is subtracted; per quarter it is told what pool and store hold, so that growth can be traced.

Exit code 1 when one of these does not hold. The last line is one JSON object.

    python bench/soak.py                                        # 2,000 requests, default model
    python bench/soak.py --requests 200 --clients 8 --seed 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx
import psutil
import torch
from transformers import PreTrainedModel

from branchwise import Engine
from branchwise.bench.provenance import model_facts, provenance
from branchwise.hub import load, resolve
from branchwise.serve.run import Server, start_in_background
from branchwise.serve.settings import ServerSettings

BAR = 1.02
LONGEST_ANSWER = 48
MALFORMED: tuple[dict[str, Any], ...] = (
    {"max_tokens": 0},
    {"temperature": -1},
    {"bogus": 1},
    {"prompt": []},
    {"top_p": 2},
    {"stop": ""},
    {"seed": "x"},
)
TEXT = "the river runs past old mills and new towns while boats carry salt wool and letters to the sea"
WORDS = TEXT.split()


class Soak:
    """What is sent and what came of it.

    Args:
        client: towards the server.
        args: of the command line.
    """

    def __init__(self, client: httpx.AsyncClient, args: argparse.Namespace) -> None:
        self._client = client
        self._coins = random.Random(args.seed)
        self._args = args
        self._filling = args.clients
        self.filled_at: float | None = None  # when everything bounded was full
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def client(self, numbers: asyncio.Queue[int]) -> None:
        """One client: fills what is bounded, then sends the next request when the last is over."""
        try:
            await self._fill()
        except (httpx.HTTPError, KeyError, ValueError) as error:
            self.wrong.append(f"a filling request: {type(error).__name__}: {error}")
        while not numbers.empty():
            number = numbers.get_nowait()
            kind = self._coins.random()
            try:
                if kind < self._args.malformed:
                    await self._send_malformed()
                elif kind < self._args.malformed + self._args.cancelled:
                    await self._leave()
                else:
                    await self._complete()
            except (httpx.HTTPError, KeyError, ValueError) as error:
                self.wrong.append(f"request {number}: {type(error).__name__}: {error}")

    async def _fill(self) -> None:
        words = self._args.longest * 5 // 4
        body = {"prompt": " ".join(self._coins.choices(WORDS, k=words)), "max_tokens": LONGEST_ANSWER}
        (await self._client.post("/v1/completions", json=body)).raise_for_status()
        self._filling -= 1
        if not self._filling:
            self.filled_at = time.perf_counter()

    def _body(self) -> dict[str, Any]:
        coins = self._coins
        prompt = " ".join(coins.choices(WORDS, k=min(self._args.longest, coins.choice((2, 8, 30, 120, 400)))))
        body = {
            "prompt": prompt,
            "max_tokens": coins.choice((1, 4, 16, LONGEST_ANSWER)),
            "temperature": coins.choice((0, 0.8)),
        }
        return body | ({"seed": coins.randrange(1000)} if coins.random() < 0.5 else {})

    async def _send_malformed(self) -> None:
        answer = await self._client.post("/v1/completions", json=self._body() | self._coins.choice(MALFORMED))
        if answer.status_code != 400:
            raise ValueError(f"a malformed request got {answer.status_code}: {answer.text[:200]}")
        self.outcomes["malformed"] += 1

    async def _leave(self) -> None:
        pieces = self._coins.randrange(3)
        async with self._client.stream("POST", "/v1/completions", json=self._body() | {"stream": True}) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_lines():
                pieces -= 1
                if pieces < 0:
                    break
        self.outcomes["left"] += 1

    async def _complete(self) -> None:
        body = self._body()
        if self._coins.random() < 0.5:
            answer = await self._client.post("/v1/completions", json=body)
            answer.raise_for_status()
            usage, ends = answer.json()["usage"], [choice["finish_reason"] for choice in answer.json()["choices"]]
        else:
            usage, ends = await self._read_stream(body)
        if (
            len(ends) != 1
            or ends[0] not in ("stop", "length")
            or not 1 <= usage["completion_tokens"] <= body["max_tokens"]
        ):
            raise ValueError(f"an odd answer: {ends}, {usage}, for {body}")
        self.outcomes["answered"] += 1

    async def _read_stream(self, body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        usage, ends, is_done = {}, [], False
        async with self._client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    is_done = True
                elif line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    usage = event.get("usage") or usage
                    ends += [choice["finish_reason"] for choice in event["choices"] if choice["finish_reason"]]
        if not is_done:
            raise ValueError("a stream ended without [DONE]")
        return usage, ends


@dataclass(frozen=True)
class Sample:
    """Bytes at one moment: resident, and those of them that the pool of keys and values and the store of prompts hold.

    Both are bounded; the pool counts rows that were not written yet.
    """

    at: float
    resident: int
    pool: int
    prefixes: int


@torch.inference_mode()
def multiply_all(model: PreTrainedModel, most: int) -> None:
    """Lets the model see every number of rows up to ``most``."""
    for rows in range(1, most + 1):
        model(input_ids=torch.zeros(1, rows, dtype=torch.long), use_cache=False)


async def sample_memory(engine: Engine, samples: list[Sample]) -> None:
    """Four samples a second."""
    process = psutil.Process()
    while True:
        pool, prefixes = engine.target.cache.nbytes, engine.prefixes.nbytes
        samples.append(Sample(time.perf_counter(), process.memory_info().rss, pool, prefixes))
        await asyncio.sleep(0.25)


async def soak(server: Server, args: argparse.Namespace) -> tuple[Soak, list[Sample]]:
    """Sends everything; returns outcomes and memory over time, from when everything bounded was full."""
    samples: list[Sample] = []
    limits = httpx.Limits(max_connections=args.clients)
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
        run = Soak(client, args)
        numbers: asyncio.Queue[int] = asyncio.Queue()
        for number in range(args.requests):
            numbers.put_nowait(number)
        sampling = asyncio.create_task(sample_memory(server.engine, samples))
        await asyncio.gather(*(run.client(numbers) for _ in range(args.clients)))
        sampling.cancel()
    return run, [sample for sample in samples if run.filled_at is not None and sample.at >= run.filled_at]


def quarters(samples: Sequence[Sample]) -> list[dict[str, float]]:
    """Medians of each quarter of the time, by name; fewer than four where a run was too short to tell."""
    if len(samples) < 2:
        return []
    begin, whole = samples[0].at, samples[-1].at - samples[0].at
    parts = [[one for one in samples if q <= 4 * (one.at - begin) / whole <= q + 1] for q in range(4)]
    names = ("resident", "pool", "prefixes")
    return [{name: median(getattr(one, name) for one in part) for name in names} for part in parts if part]


def main() -> int:
    """Soaks; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "float64"))
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--cancelled", type=float, default=0.2, help="share of streams that are left")
    parser.add_argument("--malformed", type=float, default=0.05, help="share of requests that are refused")
    parser.add_argument("--longest", type=int, default=400, metavar="WORDS", help="the longest prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model, dtype=getattr(torch, args.dtype))
    multiply_all(model, len(tokenizer(" ".join(WORDS * (args.longest // len(WORDS) + 1)))["input_ids"]) * 5 // 4)
    engine = Engine(model, tokenizer, prefix_bytes=2**26)
    server = start_in_background(engine, ServerSettings("soak"))
    began = time.perf_counter()
    run, samples = asyncio.run(soak(server, args))
    seconds = time.perf_counter() - began
    idle_by = time.perf_counter() + 10
    counts = engine.statistics
    while counts.running + counts.waiting + counts.reading and time.perf_counter() < idle_by:
        time.sleep(0.05)
        counts = engine.statistics
    memory = quarters(samples)
    grown = memory[3]["resident"] / memory[1]["resident"] if len(memory) == 4 else None
    checks = {
        "every request came to its end": sum(run.outcomes.values()) == args.requests and not run.wrong,
        "no request is left": counts.running == counts.waiting == counts.reading == 0,
        "no lane is left": engine.target.cache.lanes == (),
        f"memory grew by at most {BAR - 1:.0%}": grown is not None and grown <= BAR,
    }
    server.should_exit = True
    for text, holds in checks.items():
        print(f"{'holds ' if holds else 'FAILED'}  {text}")
    for text in run.wrong[:10]:
        print(f"        {text}")
    outcomes = dict(run.outcomes)
    print(f"{args.requests} requests in {seconds:.0f} s: {outcomes}")
    for number, quarter in enumerate(memory, start=1):
        held = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in quarter.items())
        print(f"        quarter {number}: {held}")
    print("the run was too short to tell growth" if grown is None else f"memory {grown:.4f} times the second quarter's")
    result = {
        "outcomes": outcomes,
        "seconds": seconds,
        "memory_growth": grown,
        "memory_quarters": memory,
        "checks": checks,
        "wrong": run.wrong,
        "generated_tokens": counts.generated_tokens,
    }
    facts = model_facts(args.model, resolve(args.model), model)
    print(json.dumps({**result, "provenance": provenance(model=facts)}))
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
