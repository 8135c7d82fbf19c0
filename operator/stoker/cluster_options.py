"""What operator and api are both given of a cluster on the command line, read alike: topology levels, GPU types.

Called by `controller.options` and `stoker_api.main`.
"""

from __future__ import annotations

import click

from stoker.spec.gpu_types import GpuTypes, parse_rows
from stoker.spec.names import LABEL_KEY


def topology_levels(_context: click.Context, _option: click.Parameter, keys: tuple[str, ...]) -> tuple[str, ...]:
    for key in keys:
        if not LABEL_KEY.fits(key):
            raise click.BadParameter(f"{key!r} {LABEL_KEY.says}")
    return keys


def gpu_types(_context: click.Context, _option: click.Parameter, rows: tuple[str, ...]) -> GpuTypes:
    try:
        return GpuTypes(parse_rows(rows))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
