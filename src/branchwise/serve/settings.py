"""What a server allows, and how it calls its model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSettings:
    """Limits and names of one server.

    Attributes:
        model_name: what clients call the model.
        api_key: what clients must present as ``Authorization: Bearer ...``; None lets everybody in.
        body_bytes: most bytes of a request's body.
        prompt_tokens: most tokens of a prompt; None leaves it to the model's context.
        open_requests: most completion requests in progress at once, streams and waiting ones included.
        choices: most completions that one request may ask for (prompts times ``n``).
        send_seconds: a client that takes no bytes for so long is given up.
        grace_seconds: when shutting down, what runs may go on for so long; then it ends.
        log_prompts: write prompts and outputs to the log; off, so that no text of a user is kept.

    Raises:
        ValueError: a number is out of range.
    """

    model_name: str
    api_key: str | None = None
    body_bytes: int = 4 * 2**20
    prompt_tokens: int | None = None
    open_requests: int = 256
    choices: int = 32
    send_seconds: float = 60.0
    grace_seconds: float = 30.0
    log_prompts: bool = False

    def __post_init__(self) -> None:
        for name in ("body_bytes", "open_requests", "choices", "send_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if self.prompt_tokens is not None and self.prompt_tokens < 1:
            raise ValueError(f"prompt_tokens must be >= 1, or None for the model's own limit, got {self.prompt_tokens}")
        if self.grace_seconds < 0:
            raise ValueError(f"grace_seconds must be >= 0, got {self.grace_seconds}")
        if self.api_key == "":
            raise ValueError("api_key must not be empty; leave it out to let everybody in")
