"""The extra "serve" is not installed with every set of dependencies the suite runs on; without it, no tests here."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("fastapi", "uvicorn", "prometheus_client"))) else ["test_*.py"]
