"""The release: wheel, sdist, images, chart, their SBOMs and checksums in `dist/<version>/`, and proof that they fit.

Called by `make release` and by hand (`python -m tools.release`); the end-to-end tests call `release.chart`.
Never signs, never pushes: that is the publisher's (docs/release.md).
"""
