"""A session's first message: what the caller wants of the worker. Strict, and bounded; later ones are passed on unread.

Owns the message's shape. Called by `rendezvous.py`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stoker_api.body_parsing import invalid_fields

MAX_ARGUMENTS = 1024
MAX_ARGUMENT_CHARS = 64 * 1024
"""All arguments together."""
_FAULTS = 5

_Argument = Annotated[str, Field(pattern=r"^[^\x00]*$")]
_Cells = Annotated[int, Field(ge=1, le=10_000)]


class _FirstMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    def done(self) -> str:
        """What the caller does with the worker, for the job's events."""
        raise NotImplementedError


class ExecMessage(_FirstMessage):
    """A command in the worker; an empty `argv` is its shell."""

    name: ClassVar[str] = "exec"

    kind: Literal["exec"]
    argv: Annotated[tuple[_Argument, ...], Field(max_length=MAX_ARGUMENTS)] = ()
    tty: bool = False
    columns: _Cells = 80
    rows: _Cells = 24
    term: Annotated[str, Field(pattern=r"^[!-~]{1,64}$")] = "xterm"

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if sum(map(len, self.argv)) > MAX_ARGUMENT_CHARS:
            raise ValueError(f"argv: may have {MAX_ARGUMENT_CHARS} characters in all")
        return self

    def done(self) -> str:
        return "exec'ed into"


class ForwardMessage(_FirstMessage):
    """Connections to a port of the worker's own loopback."""

    name: ClassVar[str] = "portforward"

    kind: Literal["forward"]
    port: Annotated[int, Field(ge=1, le=65535)]

    def done(self) -> str:
        return f"forwards port {self.port} of"


FirstMessage = ExecMessage | ForwardMessage


def read_first_message(model: type[FirstMessage], text: str) -> FirstMessage:
    """Raises: ValueError with a message for the caller, which never repeats what it sent."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        faults = [f"{fault.pointer}: {fault.detail}" for fault in invalid_fields(error, root=model).errors]
        raise ValueError(f"the first message is not valid: {'; '.join(faults[:_FAULTS])}") from None
