"""Versions of what branchwise stands on, and which extras are there. Imports none of the extras."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from packaging.requirements import Requirement

from .. import __version__
from .finding import Finding


@dataclass(frozen=True)
class Extra:
    """Packages that only some uses need.

    Attributes:
        purpose: what for.
        modules: what must be importable; named like the packages, but for hyphens.
    """

    purpose: str
    modules: tuple[str, ...]


#: those of pyproject.toml that are for users
EXTRAS: dict[str, Extra] = {
    "hub": Extra("fetching the named models", ("gguf", "accelerate")),
    "grammar": Extra("JSON schemas, regular expressions, EBNF", ("xgrammar",)),
    "serve": Extra("the server", ("fastapi", "uvicorn", "prometheus_client", "jinja2")),
    "plot": Extra("plots of measurements", ("matplotlib",)),
    "triton": Extra("the attention kernel for GPUs", ("triton",)),
    "openvino": Extra("the compiled engine for CPUs", ("openvino",)),
    "peers": Extra("other engines to measure beside", ("openvino_genai", "xllamacpp")),
    "ray": Extra("many replicas, clusters", ("ray", "fastapi", "uvicorn", "prometheus_client", "jinja2")),
}


def core_packages() -> Finding:
    """Versions of the core dependencies; broken when one is missing or older than branchwise asks for.

    A checkout that was never installed has no requirements to compare with.
    """
    try:
        asked = [Requirement(line) for line in metadata.requires("branchwise") or ()]
    except metadata.PackageNotFoundError:
        asked = [Requirement(name) for name in ("torch", "transformers", "numpy")]
    shown, wrong = [], []
    for requirement in asked:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = _version(requirement.name)
        shown.append(f"{requirement.name} {found or 'missing'}")
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            wrong.append(str(requirement))
    versions = f"branchwise {__version__}, Python {platform.python_version()}, {', '.join(shown)}"
    if wrong:
        remedy = " ".join(f"'{line}'" for line in wrong)
        return Finding("packages", "broken", f"{versions}; run: pip install {remedy}")
    return Finding("packages", "ok", versions)


def extras() -> Iterator[Finding]:
    """One finding per extra."""
    for name, extra in EXTRAS.items():
        missing = [module for module in extra.modules if find_spec(module) is None]
        if missing:
            says = f"no {', no '.join(missing)}; for {extra.purpose}: pip install 'branchwise[{name}]'"
            yield Finding(f"extra {name}", "absent", says)
        else:
            versions = ", ".join(f"{module} {_version(module)}" for module in extra.modules)
            yield Finding(f"extra {name}", "ok", f"{extra.purpose}: {versions}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
