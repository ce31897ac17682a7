"""The one category of branchwise's own warnings, so that users can filter them."""


class BranchwiseWarning(UserWarning):
    """Something works, but not as well as it should."""
