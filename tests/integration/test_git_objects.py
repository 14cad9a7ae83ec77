"""Git objects that this tool reads and writes by itself, read by another implementation: GitPython."""

from __future__ import annotations

from pathlib import Path

import git as gitpython
import gitdb
import pytest

from patchworld import CMAKE, DIRECTORY, simple
from sglwheel.git import Git, objects

pytestmark = pytest.mark.integration


def test_another_implementation_reads_the_same(tmp_path: Path) -> None:
    world = simple(tmp_path)
    world.commit({f"{DIRECTORY}/ü.bin": b"\0\xff\r\n", f"{DIRECTORY}/empty": ""}, "more")
    with gitpython.Repo(world.repository) as theirs:
        blobs = [item for item in theirs.head.commit.tree.traverse() if item.type == "blob"]
        read = {blob.hexsha: blob.data_stream.read() for blob in blobs}
    found = objects.read_blobs(Git(world.repository), read)
    assert found == read
    assert len(found) == 6
    for id, data in found.items():
        assert objects.object_id("blob", data) == id


def test_another_implementation_reads_what_a_scratch_store_holds(tmp_path: Path) -> None:
    world = simple(tmp_path)
    git = Git(world.repository)
    with objects.Scratch(git) as scratch:
        base = scratch.commit(scratch.tree({"f0": scratch.blob(CMAKE.encode())}))
        sides = [
            scratch.commit(scratch.tree({"f0": scratch.blob(CMAKE.replace(old, new).encode())}), base)
            for old, new in (("line(5)", "ours(5)"), ("line(30)", "theirs(30)"))
        ]
        ((clean, merged, stages),) = scratch.merge([(sides[0], sides[1])])
        store = gitdb.LooseObjectDB(scratch.env["GIT_OBJECT_DIRECTORY"])
        for id in (base, *sides):
            assert store.info(bytes.fromhex(id)).type == b"commit"
        assert base.encode() in store.stream(bytes.fromhex(sides[0])).read()
        (blob,) = scratch.trees([merged])[merged].values()
        text = store.stream(bytes.fromhex(blob)).read().decode()
    assert clean and not stages
    assert text == CMAKE.replace("line(5)", "ours(5)").replace("line(30)", "theirs(30)")
