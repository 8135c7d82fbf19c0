"""The client's calls about code, apart from `client.py` for its size. `Client` is the only one who has them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from stoker.client.wire import Wire

if TYPE_CHECKING:
    from .bundle import Bundle
    from .sending import Progress


class CodeCalls:
    """`ship` and what it is made of."""

    project: str
    _wire: Wire

    def ship(self, folder: str | os.PathLike[str], *, project: str | None = None) -> str:
        """The digest of the folder's code, to be given as `trainer.code`; the project's server holds it then.

        What .gitignore and .stokerignore say is left out (docs/code.md), and what the server has is not sent again.

            code = stoker.ship(".")
            stoker.submit({"trainer": {"command": ["python", "train.py"], "code": code}})

        Raises: BadInput where the folder can't be shipped, saying why; and as everywhere ApiError, Unreachable.
        """
        from .bundle import read_folder

        bundle = read_folder(folder)
        self.send_code(bundle, project=project)
        return bundle.digest

    def send_code(self, bundle: Bundle, *, project: str | None = None, progress: Progress | None = None) -> int:
        """How many bytes it took to make the server hold the bundle; 0 if it held it already."""
        from .sending import send

        return send(self._wire, f"/v1/projects/{quote(project or self.project, safe='')}/code", bundle, progress)
