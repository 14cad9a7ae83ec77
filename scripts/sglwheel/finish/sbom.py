"""A CycloneDX bill of materials from the provenance of a wheel."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Commit, Component, ComponentType, Patch, PatchClassification, Pedigree
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.version import Version

_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 9562's for URLs
_GITHUB = re.compile(r"https://github\.com/([^/]+)/([^/]+?)(\.git)?/?")


def cyclonedx(name: str, version: Version, origin: Mapping[str, Any], *, epoch: int) -> bytes:
    """The document for one wheel; serial number and time follow from its inputs."""
    wheel = _wheel(name, version, origin)
    sources = [_source(item) for item in origin["sources"]]
    torch = _torch(origin)
    compilers = [_nvcc(origin)] if "nvcc" in origin["toolchain"] else []
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, f"sglwheel:{name}:{version}:{origin['fingerprint']}"),
        metadata=BomMetaData(component=wheel, timestamp=datetime.fromtimestamp(epoch, UTC)),
        components=[*sources, torch, *compilers],
    )
    bom.register_dependency(wheel, [*sources, torch])
    return (JsonV1Dot6(bom).output_as_string(indent=2) + "\n").encode()


def _wheel(name: str, version: Version, origin: Mapping[str, Any]) -> Component:
    upstream = origin["upstream"]
    patches = [
        Patch(type=PatchClassification.UNOFFICIAL)
        for patch in origin["patched"]["patches"]
        if patch["commit"] is not None
    ]
    ancestor = Component(
        name=name,
        type=ComponentType.LIBRARY,
        version=upstream["commit"],
        bom_ref=f"upstream:{upstream['commit']}",
        purl=_purl(upstream["url"], upstream["commit"]),
    )
    return Component(
        name=name,
        type=ComponentType.LIBRARY,
        version=str(version),
        bom_ref=f"wheel:{name}",
        purl=PackageURL("pypi", None, name.lower().replace("_", "-"), str(version)),
        pedigree=Pedigree(
            ancestors=[ancestor],
            commits=[Commit(uid=upstream["commit"], url=XsUri(upstream["url"]))],
            patches=patches,
        ),
        properties=_properties(
            {
                "patched-commit": origin["patched"]["commit"],
                "patched-tree": origin["patched"]["tree"],
                "fingerprint": origin["fingerprint"],
                **{f"patch:{p['name']}": p["state"] for p in origin["patched"]["patches"]},
            }
        ),
    )


def _source(item: Mapping[str, Any]) -> Component:
    revision = item["commit"] or item["requested"] or item["tree"]
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=item["sha256"])] if item["sha256"] else []
    kind = ExternalReferenceType.VCS if item["kind"] == "git" else ExternalReferenceType.DISTRIBUTION
    return Component(
        name=item["name"],
        type=ComponentType.LIBRARY,
        version=revision,
        bom_ref=f"source:{item['name']}",
        purl=_purl(item["url"], item["commit"]) if item["via"] != "override" else None,
        hashes=hashes,
        external_references=[ExternalReference(type=kind, url=XsUri(item["url"]))],
        properties=_properties({"via": item["via"], "tree": item["tree"]}),
    )


def _torch(origin: Mapping[str, Any]) -> Component:
    """Not inside the wheel: what it was compiled against and requires."""
    torch = origin["torch"]
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=torch["sha256"])] if torch["sha256"] else []
    return Component(
        name="torch",
        type=ComponentType.FRAMEWORK,
        version=torch["version"],
        bom_ref="requires:torch",
        purl=PackageURL("pypi", None, "torch", torch["version"]),
        hashes=hashes,
        properties=_properties({"full-version": torch["full-version"], "git-version": torch["git-version"]}),
    )


def _nvcc(origin: Mapping[str, Any]) -> Component:
    """The compiler; parts of its toolkit's headers and runtime end up in the libraries."""
    return Component(
        name="cuda-toolkit",
        type=ComponentType.LIBRARY,
        version=origin["toolchain"]["nvcc"],
        bom_ref="toolchain:cuda-toolkit",
        properties=_properties(
            {"provider": origin["toolchain"]["provider"], "cxx": origin["toolchain"]["cxx"]}
        ),
    )


def _purl(url: str, commit: str | None) -> PackageURL | None:
    match = _GITHUB.fullmatch(url)
    return PackageURL("github", match[1].lower(), match[2].lower(), commit) if match else None


def _properties(values: Mapping[str, str | None]) -> Iterable[Property]:
    return [Property(name=f"sglwheel:{key}", value=value) for key, value in sorted(values.items()) if value]
