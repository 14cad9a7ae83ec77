"""Throwaway libraries and wheels for tests of inspection: compiled with cc, GPU code made by hand."""

from __future__ import annotations

import base64
import functools
import hashlib
import platform
import struct
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from sglwheel.inspect import Expectation, Inspection, TorchSymbols, inspect

MACHINE = platform.machine()
KERNEL = "_ZN3c105ErrorC1Ev"  # c10::Error::Error()
TORCH = TorchSymbols("2.12.0+cu130", "13.0", frozenset({KERNEL, "_ZN2at6detail5emptyEi"}))
EXPECT = Expectation(
    torch=Version("2.12.0"),
    cuda_major=13,
    sass=frozenset({"sm_120a"}),
    operators=("sample_kernel::rmsnorm",),
    max_size_mib=1,
    distribution="sample-kernel",
    version=Version("0.3.21+cu130.torch2.12.0.sm120a.1"),
)


def entry(
    number: int = 120,
    suffix: str = "a",
    *,
    kind: int = 2,
    payload: bytes = b"\x7fELF cubin",
    compressed: int = 0,
) -> bytes:
    """One fat binary entry: kind 1 is PTX, 2 is SASS."""
    flags = 0x11 | {"": 0, "a": 1 << 20, "f": 1 << 21}[suffix] | compressed
    payload += bytes(-len(payload) % 8)
    header = struct.pack(
        "<HHIQ12xI8xQ8xQ", kind, 0x101, 64, len(payload), number, flags, 4096 * bool(compressed)
    )
    return header + payload


def container(*entries: bytes) -> bytes:
    """A fat binary."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def c_name(symbol: str) -> str:
    """A declaration that leaves `symbol` undefined, whatever it is called."""
    return f'extern int use_{abs(hash(symbol))}(void) __asm__("{symbol}");'


@dataclass(frozen=True)
class Source:
    """What a library shall be like."""

    undefined: tuple[str, ...] = ("PyModule_Create2", KERNEL, "cuMemFree_v2")
    needed: tuple[str, ...] = ("libtorch.so", "libc10.so", "libcuda.so.1", "libcudart.so.13")
    exported: tuple[str, ...] = ("PyInit_common_ops",)
    fatbin: bytes = field(default_factory=lambda: container(entry()))
    schemas: tuple[str, ...] = ("rmsnorm(Tensor! out, Tensor input, float eps) -> ()",)
    rpath: str | None = None
    soname: str | None = None
    versions: tuple[tuple[str, str, str], ...] = ()
    """(symbol, version, library) of versioned symbols that it asks for."""


@functools.cache
def compiled(source: Source) -> bytes:
    """Compile a shared library with exactly these NEEDED, symbols and sections."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        versioned = {name: (version, library) for name, version, library in source.versions}
        stubs = []
        for soname in dict.fromkeys((*source.needed, *(library for _, _, library in source.versions))):
            stub = directory / f"stub-{len(stubs)}.so"
            symbols = {name: version for name, (version, library) in versioned.items() if library == soname}
            script = directory / "versions.map"
            script.write_text("".join(f"{version} {{ {name}; }};\n" for name, version in symbols.items()))
            code = (
                "".join(f"int {name}(void) {{ return 0; }}\n" for name in symbols) or "static int nothing;\n"
            )
            cc(code, stub, f"-Wl,-soname,{soname}", *([f"-Wl,--version-script={script}"] if symbols else []))
            stubs.append(str(stub))
        lines = [c_name(name) for name in (*source.undefined, *versioned)]
        uses = " + ".join(f"use_{abs(hash(name))}()" for name in (*source.undefined, *versioned)) or "0"
        lines.append(f"int use_all(void) {{ return {uses}; }}")
        lines += [f"void {name}(void) {{}}" for name in source.exported]
        lines += [f"const char schema_{i}[] = {quoted(text)};" for i, text in enumerate(source.schemas)]
        if source.fatbin:
            blob = directory / "fatbin"
            blob.write_bytes(source.fatbin)
            section = f'.section .nv_fatbin,"a"\n.balign 8\n.incbin "{blob}"\n.balign 8\n.text\n'
            lines.append(f"__asm__({quoted(section)});")
        output = directory / "library.so"
        flags = [f"-Wl,-rpath,{source.rpath}"] if source.rpath is not None else []
        flags += [f"-Wl,-soname,{source.soname}"] if source.soname else []
        cc("\n".join(lines), output, "-Wl,--no-as-needed", *stubs, *flags)
        return output.read_bytes()


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def cc(code: str, output: Path, *flags: str) -> None:
    source = output.with_suffix(".c")
    source.write_text(code + "\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-w", "-nostdlib", "-o", output, source, *flags],
        check=True,
        text=True,
    )


LIBRARY = "sample_kernel/sm100/common_ops.abi3.so"


@dataclass(frozen=True)
class World:
    """A wheel to be written, right in every point until a test changes one."""

    distribution: str = "sample-kernel"
    version: str = "0.3.21+cu130.torch2.12.0.sm120a.1"
    tag: str = (
        f"cp310-abi3-manylinux_2_5_{MACHINE}"
        if MACHINE == "x86_64"
        else f"cp310-abi3-manylinux_2_17_{MACHINE}"
    )
    wheel_tag: str | None = None
    metadata_version: str | None = None
    requires: tuple[str, ...] = ("torch==2.12.0",)
    libraries: Mapping[str, Source | bytes] = field(default_factory=lambda: {LIBRARY: Source()})
    files: Mapping[str, bytes] = field(default_factory=dict)
    unrecorded: Mapping[str, bytes] = field(default_factory=dict)
    record: Mapping[str, str] = field(default_factory=dict)
    """Lines of RECORD that replace the right ones; an empty text leaves the line out."""
    without: tuple[str, ...] = ()

    def changed(self, **changes: object) -> World:
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def info(self) -> str:
        return f"{self.distribution.replace('-', '_')}-{self.version}.dist-info"

    @property
    def file_name(self) -> str:
        return f"{self.distribution.replace('-', '_')}-{self.version}-{self.tag}.whl"

    def members(self) -> list[tuple[str, bytes]]:
        metadata = f"Metadata-Version: 2.1\nName: {self.distribution}\n"
        metadata += f"Version: {self.metadata_version or self.version}\n"
        metadata += "".join(f"Requires-Dist: {item}\n" for item in self.requires)
        members: dict[str, bytes] = {
            "sample_kernel/__init__.py": b"import torch\nrmsnorm = torch.ops.sample_kernel.rmsnorm\n",
            **{
                path: compiled(source) if isinstance(source, Source) else source
                for path, source in self.libraries.items()
            },
            **self.files,
            f"{self.info}/METADATA": metadata.encode(),
            f"{self.info}/WHEEL": f"Wheel-Version: 1.0\nTag: {self.wheel_tag or self.tag}\n".encode(),
        }
        lines = []
        for path, content in members.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(self.record.get(path, f"{path},sha256={digest},{len(content)}"))
        lines += [line for path, line in self.record.items() if path not in members]
        lines.append(f"{self.info}/RECORD,,")
        members[f"{self.info}/RECORD"] = ("\n".join(line for line in lines if line) + "\n").encode()
        members |= self.unrecorded
        return [(path, content) for path, content in members.items() if path not in self.without]

    def write(self, directory: Path) -> Path:
        path = directory / self.file_name
        write_zip(path, self.members())
        return path


def write_zip(path: Path, members: Sequence[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name, (2026, 3, 6, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


def inspected(
    world: World, directory: Path, *, expect: Expectation | None = EXPECT, torch: TorchSymbols | None = TORCH
) -> Inspection:
    return inspect(world.write(directory), expect=expect, torch=torch)
