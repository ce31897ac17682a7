"""Checks an installed branchwise that has its core dependencies and nothing else, and the archives it came from.

Not a test of pytest, which is not installed there either: ``make package`` runs it with ``python -I``, so that neither
the checkout nor the user's own packages are in the way.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import metadata, version
from importlib.util import find_spec
from pathlib import Path

#: what only extras bring; none of them may be needed, and none may be loaded by an import
OPTIONAL = (
    "fastapi", "uvicorn", "starlette", "prometheus_client", "ray", "openvino", "matplotlib", "xgrammar", "gguf",
)  # fmt: skip
#: files that have no place in an archive
JUNK = ("__pycache__", ".pyc", ".venv", ".hypothesis", "_cache/", "/out/", "/results/")
#: draft heads are the only weights, and most of the wheel
HEADS, HEAD_BYTES = "branchwise/heads/", 20_000_000


def check_archives(folder: Path) -> None:
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
        heads = sum(file.file_size for file in archive.infolist() if file.filename.startswith(HEADS))
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    sources = ("branchwise/attention/native_kernel/kernel.c", "branchwise/target/native_decoder/decoder.c")
    for name in ("branchwise/py.typed", "branchwise/cli.py", *sources):
        assert name in in_wheel, f"{wheel.name} lacks {name}"
        assert f"src/{name}" in in_source, f"{source.name} lacks src/{name}"
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "tests/conftest.py", "docs/exactness.md"):
        assert name in in_source, f"{source.name} lacks {name}"
    for name in in_wheel | in_source:
        assert not any(junk in f"/{name}" for junk in JUNK), f"{name} has no place in an archive"
        assert not name.endswith(".safetensors") or HEADS in name, f"{name} has no place in an archive"
    own = {"branchwise", f"branchwise-{version('branchwise')}.dist-info"}
    strangers = {name.partition("/")[0] for name in in_wheel} - own
    assert not strangers, f"the wheel would also install {strangers}"
    size = wheel.stat().st_size
    assert size < 2_000_000 + min(heads, HEAD_BYTES), f"the wheel has {size} bytes, of which heads {heads}"


def check_import() -> None:
    present = [name for name in OPTIONAL if find_spec(name) is not None]
    assert not present, f"this environment is not clean: it has {present}"
    import branchwise

    assert Path(branchwise.__file__).is_relative_to(sys.prefix), f"imported from {branchwise.__file__}"
    assert branchwise.__version__ == version("branchwise") == metadata("branchwise")["Version"]
    for name in branchwise.__all__:
        getattr(branchwise, name)


def check_generation() -> None:
    """A random model in float64: the output is transformers' own."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import branchwise

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=37,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.4,
    )
    model = LlamaForCausalLM(config).double().eval()
    ids = torch.randint(3, 37, (1, 12))
    settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 48, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, **settings)
    ours = branchwise.generate(model, ids, budget=9, return_dict_in_generate=True, **settings)
    assert torch.equal(plain, ours.sequences), "the output differs from transformers' own"
    print(f"generates as transformers does, {ours.branchwise.tokens_per_step:.2f} tokens per step")


def check_commands() -> None:
    program = Path(sys.executable).with_name("branchwise")
    for arguments in (["--help"], ["version"], ["doctor"], ["models", "list"]):
        run = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"branchwise {arguments[0]} ended with {run.returncode}: {run.stdout}{run.stderr}"
    missing = subprocess.run([str(program), "serve"], capture_output=True, text=True, check=False)
    assert missing.returncode == 2 and "pip install 'branchwise[serve]'" in missing.stderr, missing.stderr


if __name__ == "__main__":
    check_archives(Path(sys.argv[1]))
    check_import()
    check_generation()
    check_commands()
    print("the installed package is in order")
