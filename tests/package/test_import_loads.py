"""What `import branchwise` loads: two small files, and never what belongs to an extra.

The bar is 0.15 s beyond torch and transformers. Times depend on the machine, the set of modules does not.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.core

#: first names of what only some commands need; transformers itself may import matplotlib's or jinja2's neighbours, so
#: the second test compares with what it has loaded already
EXTRAS = {
    "fastapi", "starlette", "uvicorn", "prometheus_client", "ray", "openvino", "matplotlib", "xgrammar", "gguf",
    "openai", "mkdocs",
}  # fmt: skip


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded by ``code`` after ``# then`` and not before."""
    before, _, then = code.partition("# then\n")
    told = "print(json.dumps(sorted(set(sys.modules) - old)))"
    script = f"import json, sys\n{before}\nold = set(sys.modules)\n{then}\n{told}"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_the_package_itself_is_two_files() -> None:
    loaded = modules_after("import torch, transformers\n# then\nimport branchwise")
    assert loaded == {"branchwise", "branchwise.warning"}


def test_it_does_not_even_load_torch() -> None:
    loaded = modules_after("# then\nimport branchwise")
    assert not {"torch", "transformers", "numpy"} & loaded


def test_its_names_bring_no_server_no_cluster_no_engine_and_no_plots() -> None:
    loaded = modules_after(
        "from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerFast\n# then\n"
        "import branchwise\nfor name in branchwise.__all__: getattr(branchwise, name)"
    )
    assert "branchwise.decode.speculator" in loaded
    assert not EXTRAS & {name.partition(".")[0] for name in loaded}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("branchwise.")}
    assert not {"serve", "train", "bench", "show", "cli"} & rooms


def test_the_command_line_answers_without_torch() -> None:
    loaded = modules_after("# then\nimport branchwise.cli")
    assert not (EXTRAS | {"torch", "transformers", "numpy"}) & {name.partition(".")[0] for name in loaded}
