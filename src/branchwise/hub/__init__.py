"""Named models: where they come from, their checksums, the cache folder they lie in, and loading them."""

from branchwise.hub.cache_folder import CacheFolder
from branchwise.hub.errors import (
    ChecksumMismatch,
    DownloadFailed,
    ModelNotFetched,
    ModelNotFound,
    ModelNotLoadable,
    TokenizerMissing,
    UnknownModel,
)
from branchwise.hub.fetch import fetch, fetch_gguf
from branchwise.hub.inventory import ModelStatus, list_models
from branchwise.hub.load import load, resolve
from branchwise.hub.named_models import NAMED_MODELS, NamedModel, WheelMember, named_model, registered_names
from branchwise.hub.progress import Progress

__all__ = [
    "NAMED_MODELS",
    "CacheFolder",
    "ChecksumMismatch",
    "DownloadFailed",
    "ModelNotFetched",
    "ModelNotFound",
    "ModelNotLoadable",
    "ModelStatus",
    "NamedModel",
    "Progress",
    "TokenizerMissing",
    "UnknownModel",
    "WheelMember",
    "fetch",
    "fetch_gguf",
    "list_models",
    "load",
    "named_model",
    "registered_names",
    "resolve",
]
