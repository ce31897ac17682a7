"""What can go wrong between a model's name and its folder, one exception per thing the user can do about it."""


class UnknownModel(ValueError):
    """A short name that is not registered but close to one that is: most likely a typing slip."""


class ModelNotFetched(OSError):
    """A registered model is not in the cache and cannot be fetched now (offline, no index, no pip)."""


class DownloadFailed(OSError):
    """pip could not deliver a pinned package. The message ends with what pip said."""


class ChecksumMismatch(ValueError):
    """Bytes differ from the pinned ones. Whatever held them has been removed."""


class TokenizerMissing(OSError):
    """A model loaded, but nothing beside it can turn text into its tokens."""


class ModelNotFound(OSError):
    """A folder or Hub id that holds no model, or none that can be reached now."""


class ModelNotLoadable(ValueError):
    """There is a model, but not one that transformers can load as a causal language model here."""
