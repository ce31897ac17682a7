"""The bodies that clients send, field by field. What is not listed is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

#: fields of OpenAI's API that are not served, with the values that ask for nothing and are let pass
_OFF: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "function_call": (None, "none"),
    "functions": (None, []),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, False),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "web_search_options": (None,),
}
#: the same inside a message
_OFF_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "annotations": (None, []),
    "audio": (None,),
    "function_call": (None,),
    "name": (None,),
    "refusal": (None,),
    "tool_calls": (None, []),
}


def _without_off(body: Any, off: dict[str, tuple[Any, ...]]) -> Any:
    """The body without unsupported fields that ask for nothing."""
    if not isinstance(body, dict):
        return body
    # by type too: 1 equals True
    return {
        name: value
        for name, value in body.items()
        if not any(type(value) is type(none) and value == none for none in off.get(name, ()))
    }


class Strict(BaseModel):
    """A body in which every field must be known."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), strict=True)


class StreamOptions(Strict):
    """What a stream carries beside text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class BranchwiseOptions(Strict):
    """What this server has and OpenAI's API has not.

    ``budget`` keeps this request's trees small: the most nodes, root included, where the server's own budget allows
    more; 1 is plain decoding. With ``steps`` each chunk of a stream tells the step that made it.
    """

    budget: Annotated[int, Field(ge=1)] | None = None
    steps: bool = False


Token = Annotated[int, Field(ge=0)]
Stop = Annotated[str, Field(min_length=1, max_length=500)]

_LEAST = 1e-5


def _check_temperature(value: float) -> float:
    # logits over less would leave float32
    if 0 < value < _LEAST:
        raise ValueError(f"{value} is neither 0 (greedy) nor at least {_LEAST}")
    return value


Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False), AfterValidator(_check_temperature)]


class Sampling(Strict):
    """Fields that both kinds of completion have: OpenAI's, and ``top_k``, ``min_p`` and ``repetition_penalty``."""

    model: str | None = None
    branchwise: BranchwiseOptions | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10, allow_inf_nan=False)] | None = 1.0
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = 0.0
    n: Annotated[int, Field(ge=1)] | None = 1
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = 1.0
    top_k: Annotated[int, Field(ge=0)] | None = 0
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = 1.0
    user: str | None = Field(default=None, description="Taken and not used: all users are served alike.")

    @model_validator(mode="before")
    @classmethod
    def _drop_off(cls, body: Any) -> Any:
        return _without_off(body, _OFF)

    @model_validator(mode="after")
    def _check_stream_options(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options need stream: true")
        if self.branchwise is not None and self.branchwise.steps and not self.stream:
            raise ValueError("branchwise.steps need stream: true")
        return self


class TextPart(Strict):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @model_validator(mode="before")
    @classmethod
    def _drop_off(cls, body: Any) -> Any:
        return _without_off(body, _OFF_IN_MESSAGE)

    @property
    def text(self) -> str:
        """The content in one piece."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class JsonSchema(Strict):
    """A schema with a name; ``strict`` is always on here."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    """What the text must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> ResponseFormat:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError("type json_schema needs the field json_schema, and no other type has it")
        return self


class ChatRequest(Sampling):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: bool | None = False
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    response_format: ResponseFormat | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _check_pairs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs need logprobs: true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are the same; give one")
        return self


class CompletionRequest(Sampling):
    """``POST /v1/completions``."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[Annotated[list[Token], Field(min_length=1)]], Field(min_length=1)]
    )
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = 16
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _check_echo(self) -> CompletionRequest:
        if self.echo and self.logprobs is not None:
            raise ValueError("echo with logprobs is not supported: log-probabilities of prompts are not computed")
        return self


class TokenizeRequest(Strict):
    """``POST /tokenize``: a text, or a chat through the model's template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check_one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(Strict):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: list[Token]
