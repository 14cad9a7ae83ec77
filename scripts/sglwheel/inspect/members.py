"""Read the files of an archive, fast and within bounds.

Inflating is what inspecting a large wheel costs. ISA-L (PyPI: isal) does it in half of zlib's time, and
`zipfile` cannot be told to use it: so the directory is zipfile's, and the bytes behind it are read here.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib

_LOCAL = struct.Struct("<4s22xHH")
_CHUNK = 256 << 10
_END = struct.Struct("<4s8xI6x")  # end of the directory: its size
_END64_LOCATOR = struct.Struct("<4s4xQ4x")
_END64 = struct.Struct("<4s36xQ8x")
_MAX_COMMENT = 1 << 16


def directory_bytes(path: Path) -> int:
    """The size of an archive's directory as its end says: zipfile makes an object of every 46 bytes of it.

    0 where the file ends in no such record. Raises OSError.
    """
    with path.open("rb") as archive:
        length = archive.seek(0, 2)
        start = archive.seek(max(0, length - _MAX_COMMENT - _END.size - _END64_LOCATOR.size))
        tail = archive.read()
        place = tail.rfind(b"PK\5\6")
        if place < 0 or len(tail) - place < _END.size:
            return 0
        size: int = _END.unpack_from(tail, place)[1]
        if place >= _END64_LOCATOR.size:
            signature, offset = _END64_LOCATOR.unpack_from(tail, place - _END64_LOCATOR.size)
            if signature == b"PK\6\7" and offset < start + place:
                archive.seek(offset)
                record = archive.read(_END64.size)
                if len(record) == _END64.size and record[:4] == b"PK\6\6":
                    size = _END64.unpack(record)[1]  # what zipfile goes by, too
        return size


def chunks(path: Path, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield a member's content in pieces of bounded size.

    Raises zipfile.BadZipFile when the bytes are not what the archive's directory says: name, size, checksum.
    """
    with path.open("rb") as archive:
        archive.seek(member.header_offset)
        header = archive.read(_LOCAL.size)
        if len(header) < _LOCAL.size:
            raise zipfile.BadZipFile("local header is truncated")
        signature, name_length, extra_length = _LOCAL.unpack(header)
        name = archive.read(name_length)
        if signature != b"PK\3\4" or name != _raw_name(member):
            raise zipfile.BadZipFile("local header and directory differ")
        archive.seek(extra_length, 1)
        size, checksum = 0, 0
        for piece in _pieces(archive, member):
            size += len(piece)
            if size > member.file_size:
                break
            checksum = isal_zlib.crc32(piece, checksum)
            yield piece
        if size != member.file_size:
            raise zipfile.BadZipFile(f"holds {size} bytes or more, the directory says {member.file_size}")
        if checksum != member.CRC:
            raise zipfile.BadZipFile("checksum (CRC-32) differs")


def _raw_name(member: zipfile.ZipInfo) -> bytes:
    return member.orig_filename.encode("utf-8" if member.flag_bits & 0x800 else "cp437", "surrogateescape")


def _pieces(archive: BinaryIO, member: zipfile.ZipInfo) -> Iterator[bytes]:
    left = member.compress_size
    if member.compress_type == zipfile.ZIP_STORED:
        while left and (piece := archive.read(min(_CHUNK, left))):
            left -= len(piece)
            yield piece
        return
    if member.compress_type != zipfile.ZIP_DEFLATED:
        raise zipfile.BadZipFile(f"compression method {member.compress_type}: a wheel uses deflate")
    inflate = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    pending = b""
    while not inflate.eof:
        if not pending:
            pending = archive.read(min(_CHUNK, left))
            left -= len(pending)
            if not pending:
                raise zipfile.BadZipFile("compressed data ends early")
        try:
            piece = inflate.decompress(pending, 4 * _CHUNK)
        except isal_zlib.IsalError as error:  # type: ignore[misc]  # its stub calls the class a value
            raise zipfile.BadZipFile(f"compressed data is damaged: {error}") from error
        pending = inflate.unconsumed_tail
        if piece:
            yield piece
