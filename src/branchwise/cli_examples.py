"""The examples below every `--help`. A test checks that each is a valid command line and that no command lacks one."""

from __future__ import annotations

import typer

#: the words behind `branchwise`, "" for itself -> lines to copy
EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        'branchwise generate "Name three rivers."',
        "branchwise doctor --speed",
        "branchwise --install-completion",
    ),
    "generate": (
        'branchwise generate "Name three rivers." --max-new-tokens 80 --show-tree',
        'branchwise generate "Write a haiku." --temperature 0.8 --top-p 0.95 --seed 1',
        "branchwise generate --file prompt.txt --model ./my-model --dtype bfloat16 --compare",
        "branchwise generate - --json < prompt.txt",
    ),
    "show": (
        'branchwise show "Name three rivers." --out rivers.html',
        'branchwise show "Name three rivers." --step 2 --out step.svg',
        'branchwise show "Name three rivers." --text',
    ),
    "compare": ("branchwise compare --quick --out report.html", "branchwise compare --json report.json --threads 2"),
    "tune": ("branchwise tune --threads 2", "branchwise tune --contexts 256,2048 --nodes 1,8,16,32 --plot curve.png"),
    "plan": (
        "branchwise plan --hardware h100 --config default --batch 1..64 --context 2048",
        "branchwise plan --check --threads 2",
    ),
    "batch": ("branchwise batch requests.jsonl answers.jsonl",),
    "models": ("branchwise models list", "branchwise models fetch default"),
    "models list": ("branchwise models list",),
    "models fetch": ("branchwise models fetch default", "branchwise models fetch qwen2.5-coder-1.5b-instruct"),
    "models path": ("branchwise models path default",),
    "bench": (
        "branchwise bench prompts.jsonl --methods plain,tree,hf-plain --budgets 17,33",
        "branchwise bench attention --threads 2 --contexts 2048",
    ),
    "bench prompts": (
        "branchwise bench prompts.jsonl --methods plain,tree,hf-plain --budgets 17,33 --json result.json",
        "branchwise bench prompts.jsonl --methods tree:mixed,tree:ngram+chain --limit-per-category 2",
    ),
    "bench attention": ("branchwise bench attention --threads 2 --contexts 2048 --plot attention.png",),
    "bench forward": ("branchwise bench forward --model default --threads 2 --nodes 1,16,32",),
    "bench peers": (
        "branchwise bench peers --threads 2 --plot peers.png",
        "branchwise bench peers prompts.jsonl --peers openvino-genai,branchwise/native-int4 --limit-per-category 2",
    ),
    "train": (
        "branchwise train data --out data --tokens 300k",
        "branchwise train eagle3 --data data --out head --minutes 40",
        "branchwise train evaluate --head head --data data",
    ),
    "train data": (
        "branchwise train data --target default --out data --tokens 1M",
        "branchwise train data --out data --prompts questions.txt",
    ),
    "train eagle3": (
        "branchwise train eagle3 --data data --out head --minutes 90",
        "branchwise train eagle3 --data data --out head --steps 2400 --resume",
    ),
    "train block": ("branchwise train block --data data --out head --block-size 8 --minutes 90",),
    "train medusa": ("branchwise train medusa --data data --out head --heads 4 --minutes 90",),
    "train ship": ("branchwise train ship --head head --data data --out heads/my-model",),
    "train evaluate": ("branchwise train evaluate --head head --data data --limit 24",),
    "serve": (
        "branchwise serve --port 8000",
        "branchwise serve --model ./my-model --device cuda --max-lanes 32 --served-name mine",
    ),
    "verify-lossless": (
        "branchwise verify-lossless",
        'branchwise verify-lossless traversal --draft "without replacement"',
    ),
    "import-tree": (
        "branchwise import-tree medusa_choices.py --name mc_sim_7b_63 --out tree.json",
        "branchwise import-tree growmap.pt --allow-pickle",
    ),
    "doctor": ("branchwise doctor", "branchwise doctor --speed --threads 2", "branchwise doctor --json"),
    "version": ("branchwise version",),
}


def add_examples(app: typer.Typer, path: str = "") -> None:
    """Puts the examples below the help of ``app`` and of all commands in it, which are registered by now."""
    app.info.epilog = _epilog(path)
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "").replace("_", "-")
        command.epilog = _epilog(f"{path} {name}".strip())
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_examples(group.typer_instance, f"{path} {group.name}".strip())


def _epilog(path: str) -> str | None:
    lines = EXAMPLES.get(path)
    return None if lines is None else "\n".join(("Examples:" if len(lines) > 1 else "Example:", *lines))
