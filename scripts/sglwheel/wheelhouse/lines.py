"""The exact lines that install a release on a node, and nothing but it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

from sglwheel.wheelhouse.record import Record

# Stands for the wheelhouse in published files, which are copied to places that nobody knows beforehand.
ANYWHERE = "$WHEELHOUSE"
_TORCH_FILE = "node-torch.txt"


@dataclass(frozen=True)
class Lines:
    """Everything that a person or script on a node pastes, for one release at one location.

    What makes them hold, each proven against real clients in tests/integration/test_install_lines.py:
    `--no-index` and the release's own immutable subindex leave the resolver one wheel and no other torch; the
    version is pinned with its local part; and the constraint frozen from the node makes a refusal name the
    node's torch beside the one that the wheel wants. `;`, not `&&`: without a torch the resolver's
    explanation should still be seen.
    """

    record: Record
    location: str

    @property
    def pin(self) -> str:
        """`sgl-kernel==0.3.21+cu130.torch2.12.0.sm120a.1`."""
        return f"{self.record.name}=={self.record.version}"

    @property
    def subindex(self) -> str:
        """Where only this release lies; it stays when the release is yanked."""
        return f"{self.location.rstrip('/')}/builds/{self.record.id}/"

    @property
    def uv(self) -> str:
        return f"{self._freeze('uv pip')}; uv pip install {self._arguments}"

    @property
    def pip(self) -> str:
        return f"{self._freeze('python -m pip')}; python -m pip install {self._arguments}"

    @property
    def _arguments(self) -> str:
        where = f"--no-index --find-links {_quote(self.subindex)}"
        return f"{where} --constraint {_TORCH_FILE} {shlex.quote(self.pin)}"

    @staticmethod
    def _freeze(client: str) -> str:
        # `list`, because `freeze` shows a torch that was installed from a file or url as `torch @ …`.
        return f"{client} list --format=freeze | grep '^torch==' > {_TORCH_FILE}"


def _quote(text: str) -> str:
    if text.startswith(ANYWHERE):
        return f'"{text}"'
    # A bare `+` or `~` means the same quoted; urls read better without quotes.
    return (
        text
        if urlsplit(text).scheme in ("http", "https") and shlex.quote(text) == text
        else shlex.quote(text)
    )
