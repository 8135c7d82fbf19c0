"""The project's container images, built without a registry: `ensure` gives one, built only when its inputs changed.

Called by `make images`, `make image-check` and the bed of `make e2e`; `build_tagged` by `make release`. By hand:
`python -m tools.images`.
Needs root, buildah and mmdebstrap. Never pushes anywhere and never writes this machine's mirrors into a layer.
"""

from .catalogue import RECIPES, Recipe
from .ensuring import BuildFailed, Image, ensure
from .machine import Missing, NotEnoughDisk
from .tagged import build_tagged

__all__ = ["RECIPES", "BuildFailed", "Image", "Missing", "NotEnoughDisk", "Recipe", "build_tagged", "ensure"]
