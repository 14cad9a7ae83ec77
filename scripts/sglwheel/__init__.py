"""sglwheel: from a recipe to an installed, checked and explained sgl-kernel wheel."""

__version__ = "0.1.0"
