"""Types of the models' fields: texts that Pydantic holds to a form, lists that are sets.

The forms themselves are in `names` and `quantity`, which import no Pydantic: the command line starts with them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from . import names
from .markers import Distinct, repeated
from .quantity import AT_LEAST_A_MINUTE, DURATION, NEW, NOT_ZERO, QUANTITY, new_duration, parse_duration, parse_quantity


def _as_text(value: object) -> object:
    # YAML reads `cpu: 2` as a number; people mean the quantity.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return value


def _quantity(text: str) -> str:
    parse_quantity(text)
    return text


def _minute(text: str, info: ValidationInfo) -> str:
    if not AT_LEAST_A_MINUTE.fits(text):
        raise ValueError(AT_LEAST_A_MINUTE.says)
    return _duration(text, info)


def _duration(text: str, info: ValidationInfo) -> str:
    if (new_duration if info.context == NEW else parse_duration)(text) <= 0:
        raise ValueError(NOT_ZERO)
    return text


def _job_name(value: str) -> str:
    if len(value) > names.JOB_NAME_MAX or not names.JOB_NAME.fits(value):
        raise ValueError(names.JOB_NAME.says)
    return value


def _dns_label(value: str) -> str:
    if len(value) > 63 or not names.DNS_LABEL.fits(value):
        raise ValueError(names.DNS_LABEL.says)
    return value


def _compute_capability(value: str) -> str:
    if not names.COMPUTE_CAPABILITY.fits(value):
        raise ValueError(f"{value!r} {names.COMPUTE_CAPABILITY.says}")
    return value


def _gpu_resource(value: str) -> str:
    if not names.GPU_RESOURCES.fits(value):
        raise ValueError(names.GPU_RESOURCES.says)
    return value


def _label_key(value: str) -> str:
    if not names.LABEL_KEY.fits(value):
        raise ValueError(names.LABEL_KEY.says)
    return value


def _gpu_type(value: str, info: ValidationInfo) -> str:
    if not names.GPU_TYPE.fits(value):
        raise ValueError(names.GPU_TYPE.says)
    if info.context == NEW and value in names.RESERVED_TYPES:
        raise ValueError(f"{value} {names.TYPE_RESERVED}")
    return value


def _env_name(value: str) -> str:
    if not names.ENV_NAME.fits(value):
        raise ValueError(names.ENV_NAME.says)
    if value in names.RESERVED_ENV or (
        value.startswith(names.RESERVED_ENV_PREFIXES) and value not in names.SETTABLE_ENV
    ):
        raise ValueError(f"{value} is set by Stoker; choose another name")
    return value


def _object_name(value: str) -> str:
    if len(value) > 253 or not names.OBJECT_NAME.fits(value):
        raise ValueError(names.OBJECT_NAME.says)
    return value


def _secret_key(value: str) -> str:
    if not names.SECRET_KEY.fits(value):
        raise ValueError(names.SECRET_KEY.says)
    return value


def _image_name(value: str) -> str:
    if not names.IMAGE_NAME.fits(value):
        raise ValueError(names.IMAGE_NAME.says)
    return value


def _requirements(value: str) -> str:
    if not names.REQUIREMENTS.fits(value):
        raise ValueError(names.REQUIREMENTS.says)
    return value


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    twice = repeated(values)
    if twice is not None:
        raise ValueError(f"{twice} stands here twice")
    return values


Quantity = Annotated[str, Field(max_length=32), QUANTITY, BeforeValidator(_as_text), AfterValidator(_quantity)]
LongDuration = Annotated[str, Field(max_length=32), AT_LEAST_A_MINUTE, AfterValidator(_minute)]
"""A Duration of a minute at least."""
Duration = Annotated[str, Field(max_length=32), DURATION, AfterValidator(_duration)]
JobName = Annotated[str, Field(max_length=names.JOB_NAME_MAX), names.JOB_NAME, AfterValidator(_job_name)]
ObjectName = Annotated[str, Field(max_length=253), names.OBJECT_NAME, AfterValidator(_object_name)]
ImageName = Annotated[str, Field(max_length=512), names.IMAGE_NAME, AfterValidator(_image_name)]
Requirements = Annotated[str, Field(max_length=1024), names.REQUIREMENTS, AfterValidator(_requirements)]
DnsLabel = Annotated[str, Field(max_length=63), names.DNS_LABEL, AfterValidator(_dns_label)]
ComputeCapability = Annotated[
    str, Field(max_length=16), names.COMPUTE_CAPABILITY, BeforeValidator(_as_text), AfterValidator(_compute_capability)
]
GpuType = Annotated[str, Field(max_length=63), names.GPU_TYPE, AfterValidator(_gpu_type)]
GpuResource = Annotated[str, Field(max_length=47), names.GPU_RESOURCES, AfterValidator(_gpu_resource)]
LabelKey = Annotated[str, Field(max_length=317), names.LABEL_KEY, AfterValidator(_label_key)]
SecretKey = Annotated[str, Field(max_length=names.SECRET_KEY_MAX), names.SECRET_KEY, AfterValidator(_secret_key)]
EnvName = Annotated[str, Field(max_length=256), names.ENV_NAME, AfterValidator(_env_name)]
DISTINCT = (Distinct(), AfterValidator(_distinct))
