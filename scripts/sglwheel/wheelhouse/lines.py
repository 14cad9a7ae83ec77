"""The exact lines and files that install a release on a node, and nothing but it."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from sglwheel.nodecheck.catalogue import install_line, replacing_line, subindex
from sglwheel.wheelhouse.record import Record, rivals

# Stands for the wheelhouse in published files, which are copied to places that nobody knows beforehand.
ANYWHERE = "$WHEELHOUSE"


@dataclass(frozen=True)
class Lines:
    """Everything that a person or script on a node pastes, for one release at one location.

    What makes them hold, each proven against real clients in tests/integration/test_install_lines.py:
    `--no-index` and the release's own immutable subindex leave the resolver one wheel and no other torch; the
    version is pinned with its local part; uv looks at the file rather than into its cache; and the constraint
    frozen from the node makes a refusal name the node's torch beside the one that the wheel wants.
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
        return subindex(self.location, self.record.id)

    @property
    def uv(self) -> str:
        return install_line("uv pip", self.subindex, self.pin, alone=self.record.alone)

    @property
    def pip(self) -> str:
        return install_line("python -m pip", self.subindex, self.pin, alone=self.record.alone)

    @property
    def uv_replacing(self) -> str | None:
        """For an environment that has the other distribution of the same files: tried first, then replaced.

        None where there is no other name.
        """
        return self._replacing("uv pip")

    @property
    def pip_replacing(self) -> str | None:
        return self._replacing("python -m pip")

    def _replacing(self, client: str) -> str | None:
        others = rivals(self.record)
        names = [*others, self.record.name]
        return replacing_line(client, self.subindex, self.pin, names) if others else None

    @property
    def hold(self) -> str:
        """For the same shell, after installing: no later install may swap torch or the wheel.

        It is what tames flashinfer-python and others whose requirements would bring another torch.
        """
        # `torch==2.12.0` would let an upgrade take 2.12.0+cu130; `===` is this build and no other.
        return (
            f"sed -i 's/==/===/' node-torch.txt; echo {shlex.quote(self.pin)} >> node-torch.txt; "
            'export UV_CONSTRAINT="$PWD/node-torch.txt" PIP_CONSTRAINT="$PWD/node-torch.txt"'
        )

    @property
    def requirements(self) -> str:
        """A requirements.txt for `uv pip install -r` and `pip install -r`; the hash is checked by both."""
        where = self.subindex.replace(ANYWHERE, "${WHEELHOUSE}")
        if where.startswith("/") and where != shlex.quote(where):
            # pip splits the line at blanks, uv takes it whole: a url has none.
            where = f"{Path(where).as_uri()}/"
        beside = f"{self.record.requires_torch}{', with --no-deps' if self.record.alone else ''}"
        return (
            f"# {self.record.name} {self.record.version}, for a node that has {beside}\n"
            f"--no-index\n--find-links {where}\n{self.pin} --hash=sha256:{self.record.sha256}\n"
        )

    @property
    def project(self) -> str:
        """What a uv project adds to its pyproject.toml: the wheel from here, whatever a registry offers."""
        requirements = [self.pin, *([self.record.requires_torch] if self.record.requires_torch else [])]
        return (
            "[project]\n"
            f"dependencies = {json.dumps(requirements)}\n\n"
            "[[tool.uv.index]]\n"
            'name = "wheelhouse"\n'
            f"url = {json.dumps(self.subindex)}\n"
            'format = "flat"\n'
            "explicit = true\n\n"
            "[tool.uv.sources]\n"
            f'{self.record.project} = {{ index = "wheelhouse" }}\n'
        )

    def to_json(self) -> dict[str, str | None]:
        names = ("pin", "uv", "pip", "uv_replacing", "pip_replacing", "hold", "requirements", "project")
        return {name: getattr(self, name) for name in names}
