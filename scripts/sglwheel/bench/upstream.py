"""What our flags save against upstream's own: CPU of named units under both, opt-in, for hours."""

from __future__ import annotations

from collections.abc import Iterator

from sglwheel.bench import Ratio, Setting


def flags(setting: Setting) -> Iterator[Ratio]:
    """Placeholder."""
    yield from ()
