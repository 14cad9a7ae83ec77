"""Everything that a build's CMake would fetch: found, verified, kept, and handed out as copies."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import threading
import tomllib
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sglwheel import source
from sglwheel.errors import SourceError, UsageError
from sglwheel.source import Dependencies, overrides
from sglwheel.source.fetched import FetchedSource
from sourceworld import Repository, World, git

pytestmark = pytest.mark.integration

LIB = "https://example.invalid/lib"
SUB = "https://example.invalid/sub"
ARCHIVE = "https://example.invalid/files/data.tar.gz"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def lib(world: World) -> Repository:
    repository = world.repository(LIB)
    repository.commit(
        {
            "LICENSE": "MIT",
            "include/lib.h": "#pragma once\n",
            "csrc/deep/a.cu": '#include "../../shared/s.h"\n#include "../gone.h"\n',
            "csrc/deep/b.cu": "",
            "shared/s.h": '#include "../more/m.h"\n',
            "shared/t.h": "",
            "more/m.h": "",
            "docs/manual.txt": "x" * 100_000,
        }
    )
    return repository


def declare(tag: str, url: str = LIB, name: str = "lib", uses: str = "include") -> dict[str, str]:
    text = f"FetchContent_Declare({name} GIT_REPOSITORY {url} GIT_TAG {tag})\nFetchContent_Populate({name})\n"
    text += "".join(f"include_directories(${{{name}_SOURCE_DIR}}/{path})\n" for path in uses.split())
    return {"CMakeLists.txt": text}


def head(repository: Repository) -> str:
    return git(repository.path, "rev-parse", "HEAD")


def dependencies(world: World, files: dict[str, str], **replaced: str) -> Dependencies:
    return source.dependencies(world.tree(files), world.recipe(), world.layout, world.mirrors, replaced)


def only(found: Dependencies) -> FetchedSource:
    (one,) = found.sources
    return one


def files_of(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def lock(world: World) -> dict[str, dict[str, str]]:
    text = (world.layout.recipes / "r.lock").read_text()
    return {table["name"]: table for table in tomllib.loads(text)["source"]}


def tarball(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


def archive(world: World, content: bytes, url: str = ARCHIVE) -> Path:
    path = world.root / "files" / url.rpartition("/")[2]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    world.entries[url.rpartition("/")[0]] = str(path.parent)
    return path


def populate(url: str, digest: str = "") -> dict[str, str]:
    pinned = f" URL_HASH SHA256={digest}" if digest else ""
    return {
        "CMakeLists.txt": f"FetchContent_Declare(data URL {url}{pinned})\nFetchContent_MakeAvailable(data)\n"
    }


def test_only_what_is_read_is_taken(world: World, lib: Repository) -> None:
    one = only(dependencies(world, declare(head(lib))))
    assert files_of(one.path) == {"LICENSE", "include/lib.h"}
    assert (one.commit, one.tree, one.via) == (head(lib), lib.tree(), "mirror")
    assert [path.name for path in one.license_files] == ["LICENSE"]
    assert one.content == overrides.tree_id(one.path), "a Git tree id of exactly these files"
    assert 0 < one.bytes_fetched < 5_000


def test_includes_that_leave_their_directory_are_followed(world: World, lib: Repository) -> None:
    one = only(dependencies(world, declare(head(lib), uses="csrc/deep/a.cu")))
    assert files_of(one.path) == {
        "LICENSE", "csrc/deep/a.cu", "csrc/deep/b.cu", "shared/s.h", "shared/t.h", "more/m.h",
    }  # fmt: skip


def test_recipe_takes_more(world: World, lib: Repository) -> None:
    recipe = world.recipe(source='sparse = { Lib = ["docs"] }')
    found = source.dependencies(world.tree(declare(head(lib))), recipe, world.layout, world.mirrors)
    assert "docs/manual.txt" in files_of(only(found).path)
    wrong = world.recipe(source='sparse = { other = ["docs"] }')
    with pytest.raises(SourceError, match="fetches no such source"):
        source.dependencies(world.tree(declare(head(lib))), wrong, world.layout, world.mirrors)


def test_second_time_nothing_is_received(world: World, lib: Repository) -> None:
    wanted = declare(head(lib))
    first = dependencies(world, wanted)
    shutil.rmtree(lib.path)
    second = dependencies(world, wanted)
    assert second.bytes_fetched == 0
    assert only(second).path == only(first).path


def test_an_edited_store_is_made_anew(world: World, lib: Repository) -> None:
    wanted = declare(head(lib))
    path = only(dependencies(world, wanted)).path / "include/lib.h"
    assert not path.stat().st_mode & 0o222
    path.chmod(0o644)
    path.write_text("edited")
    assert (only(dependencies(world, wanted)).path / "include/lib.h").read_text() == "#pragma once\n"


def test_builds_get_copies_and_keep_them(world: World, lib: Repository) -> None:
    found = dependencies(world, declare(head(lib)))
    into = world.root / "build"
    copy = source.materialize(found, into)["lib"] / "include/lib.h"
    stored = only(found).path / "include/lib.h"
    assert copy.stat().st_mtime == stored.stat().st_mtime
    copy.write_text("rewritten by CMake")
    assert stored.read_text() == "#pragma once\n"
    changed = copy.stat().st_mtime_ns
    source.materialize(found, into)
    assert copy.stat().st_mtime_ns == changed, "a second run compiles nothing again"
    lib.commit({"include/lib.h": "new"})
    source.materialize(dependencies(world, declare(head(lib)), lib=head(lib)), into)
    assert copy.read_text() == "new"


def test_submodule_only_where_it_is_read(world: World, lib: Repository) -> None:
    sub = world.repository(SUB)
    sub.commit({"COPYING": "BSD", "include/sub.h": "", "test/t.cu": "x" * 9_000})
    for path in ("third/sub", "third/unused"):
        url = "../sub" if path == "third/sub" else "https://example.invalid/nowhere"
        git(lib.path, "update-index", "--add", "--cacheinfo", f"160000,{head(sub)},{path}")
        git(lib.path, "config", "-f", ".gitmodules", f"submodule.{path}.path", path)
        git(lib.path, "config", "-f", ".gitmodules", f"submodule.{path}.url", url)
    git(lib.path, "add", ".gitmodules")
    git(lib.path, "commit", "--quiet", "-m", "submodules")
    one = only(dependencies(world, declare(head(lib), uses="include third/sub/include")))
    assert files_of(one.path) == {
        "LICENSE",
        ".gitmodules",
        "include/lib.h",
        "third/sub/COPYING",
        "third/sub/include/sub.h",
    }
    (piece,) = one.submodules
    assert (piece.path, piece.url, piece.commit, piece.tree) == ("third/sub", SUB, head(sub), sub.tree())
    assert sorted(str(path.relative_to(one.path)) for path in one.license_files) == [
        "LICENSE",
        "third/sub/COPYING",
    ]
    assert len(one.content) == 64


def test_fetched_project_and_what_it_fetches(world: World, lib: Repository) -> None:
    inner = world.repository(SUB)
    inner.commit({"include/i.h": ""})
    (lib.path / "CMakeLists.txt").write_text(declare(head(inner), SUB, "inner")["CMakeLists.txt"])
    lib.commit({"docs/logo.PNG": "P" * 20_000})
    text = f"FetchContent_Declare(lib GIT_REPOSITORY {LIB} GIT_TAG {head(lib)})\n"
    text += "FetchContent_MakeAvailable(lib)\n"
    found = {item.name: item for item in dependencies(world, {"CMakeLists.txt": text}).sources}
    assert set(found) == {"inner", "lib"}
    assert "docs/manual.txt" in files_of(found["lib"].path), "a project of its own is taken whole"
    assert "docs/logo.PNG" not in files_of(found["lib"].path), "but for what no compiler reads"
    assert files_of(found["inner"].path) == {"include/i.h"}


def test_a_tag_is_resolved_once(world: World, lib: Repository) -> None:
    git(lib.path, "tag", "v1")
    first = head(lib)
    assert only(dependencies(world, declare("v1"))).commit == first
    assert lock(world)["lib"] == {
        "name": "lib", "kind": "git", "url": LIB, "requested": "v1", "commit": first, "tree": lib.tree(),
    }  # fmt: skip
    lib.commit({"include/lib.h": "moved"})
    git(lib.path, "tag", "-f", "v1")
    assert only(dependencies(world, declare("v1"))).commit == first, "the lock says what v1 is"
    relocked = source.dependencies(
        world.tree(declare("v1")), world.recipe(), world.layout, world.mirrors, relock=True
    )
    assert only(relocked).commit == lock(world)["lib"]["commit"] == head(lib) != first


def test_lock_that_disagrees(world: World, lib: Repository) -> None:
    first = head(lib)
    dependencies(world, declare(first))
    before = (world.layout.recipes / "r.lock").read_bytes()
    lib.commit({"include/lib.h": "2"})
    with pytest.raises(SourceError, match="lock speaks of another") as caught:
        dependencies(world, declare(head(lib)))
    assert caught.value.next == "sglwheel lock r"
    assert first in caught.value.where["recipes/r.lock"]
    assert (world.layout.recipes / "r.lock").read_bytes() == before


def test_lock_keeps_other_tables(world: World, lib: Repository) -> None:
    path = world.layout.recipes / "r.lock"
    path.write_text('# kept\n[[package]]\nname = "torch"\n')
    dependencies(world, declare(head(lib)))
    text = path.read_text()
    assert "# kept" in text and 'name = "torch"' in text and "[[source]]" in text


def test_damaged_lock(world: World, lib: Repository) -> None:
    (world.layout.recipes / "r.lock").write_text("[[source]]\nname = 1")
    with pytest.raises(SourceError, match="lock is damaged"):
        dependencies(world, declare(head(lib)))


def test_url_with_hash(world: World) -> None:
    content = tarball({"data-1/include/d.h": "d", "data-1/LICENSE.txt": "MIT"})
    digest = hashlib.sha256(content).hexdigest()
    archive(world, content)
    one = only(dependencies(world, populate(ARCHIVE, digest)))
    assert (one.kind, one.sha256, one.content, one.via) == ("url", digest, digest, "mirror")
    assert files_of(one.path) == {"include/d.h", "LICENSE.txt"}, "one directory at the top is left out"
    assert [path.name for path in one.license_files] == ["LICENSE.txt"]
    (world.root / "files" / "data.tar.gz").unlink()
    again = only(dependencies(world, populate(ARCHIVE, digest)))
    assert (again.bytes_fetched, again.path, again.via) == (0, one.path, "mirror")


def test_url_with_other_content(world: World) -> None:
    archive(world, tarball({"d/x": "1"}))
    with pytest.raises(SourceError, match="data: cannot get an archive with the right content") as caught:
        dependencies(world, populate(ARCHIVE, "0" * 64))
    assert "has other content" in "".join(caught.value.where.values())
    assert caught.value.exit_code == 3
    assert not (world.layout.recipes / "r.lock").exists()


def test_url_without_hash_is_trusted_once(world: World) -> None:
    content = tarball({"d/x": "1"})
    archive(world, content)
    dependencies(world, populate(ARCHIVE))
    assert lock(world)["data"]["sha256"] == hashlib.sha256(content).hexdigest()
    shutil.rmtree(world.root / ".cache")
    archive(world, tarball({"d/x": "2"}))
    with pytest.raises(SourceError) as caught:
        dependencies(world, populate(ARCHIVE))
    assert "the lock says" in "".join(caught.value.where.values())


def test_zip_with_an_executable(world: World) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as container:
        info = zipfile.ZipInfo("z/run.sh")
        info.external_attr = 0o755 << 16
        container.writestr(info, "#!/bin/sh\n")
        container.writestr("z/a.h", "")
    archive(world, out.getvalue(), "https://example.invalid/files/z.zip")
    one = only(dependencies(world, populate("https://example.invalid/files/z.zip")))
    assert os.access(one.path / "run.sh", os.X_OK)


@pytest.mark.parametrize(
    "content", [b"not an archive", tarball({"../escape": "x"}), tarball({"a/b": "x"})[:-30]]
)
def test_bad_archives(world: World, content: bytes) -> None:
    archive(world, content)
    with pytest.raises(SourceError):
        dependencies(world, populate(ARCHIVE, hashlib.sha256(content).hexdigest()))
    assert not (world.root / ".cache" / "urls" / hashlib.sha256(content).hexdigest()).exists()


def test_forge_archive_from_a_git_mirror(world: World) -> None:
    repository = world.repository("https://github.com/owner/lib")
    commit = repository.commit({"include/l.h": "", "big.bin/x": "x" * 9_000})
    url = f"https://github.com/owner/lib/archive/{commit}.tar.gz"
    files = {
        "CMakeLists.txt": f"FetchContent_Declare(data URL {url} URL_HASH SHA256={'0' * 64})\n"
        "FetchContent_Populate(data)\nset(X ${data_SOURCE_DIR}/include)\n"
    }
    one = only(dependencies(world, files))
    assert (one.via, one.commit, one.tree, one.sha256) == ("tree-of-commit", commit, repository.tree(), None)
    assert files_of(one.path) == {"include/l.h"}
    assert lock(world)["data"]["tree"] == repository.tree()


def test_override_by_directory(world: World, lib: Repository) -> None:
    mine = world.root / "mine"
    (mine / "include").mkdir(parents=True)
    (mine / "include/lib.h").write_text("mine")
    found = dependencies(world, declare("v9"), LIB=str(mine))
    one = only(found)
    assert found.overridden and one.via == "override"
    assert (one.path, one.tree) == (mine, one.content)
    before = one.content
    (mine / "include/lib.h").write_text("mine, edited")
    assert only(dependencies(world, declare("v9"), lib=str(mine))).content != before
    assert not (world.layout.recipes / "r.lock").exists(), "what is overridden is not locked"


def test_override_by_revision_of_a_repository(world: World, lib: Repository) -> None:
    other = Repository(world.root / "fork")
    commit = other.commit({"include/lib.h": "fork"})
    git(other.path, "tag", "mine")
    for revision in ("mine", commit[:9]):
        one = only(dependencies(world, declare(head(lib)), lib=f"{other.path}@{revision}"))
        assert (one.commit, one.via, one.url) == (commit, "override", LIB)
        assert (one.path / "include/lib.h").read_text() == "fork"


def test_override_by_another_revision(world: World, lib: Repository) -> None:
    first = head(lib)
    git(lib.path, "tag", "v0")
    lib.commit({"include/lib.h": "2"})
    assert only(dependencies(world, declare(head(lib)), lib="v0")).commit == first
    assert only(dependencies(world, declare(head(lib)), lib=first)).commit == first


def test_overrides_that_fit_nothing(world: World, lib: Repository) -> None:
    with pytest.raises(UsageError, match="no source is called other") as caught:
        dependencies(world, declare(head(lib)), other=head(lib))
    assert caught.value.where["sources"] == "lib"
    with pytest.raises(UsageError) as caught:
        dependencies(world, declare(head(lib)), lib="/no/such/directory", x="a b")
    assert set(caught.value.where) == {"lib", "x"}


def test_all_that_is_missing_is_named_at_once(world: World) -> None:
    text = "".join(
        declare("1" * 40, f"https://example.invalid/{name}", name)["CMakeLists.txt"] for name in ("a", "b")
    )
    with pytest.raises(SourceError, match="2 of 2 sources cannot be had") as caught:
        dependencies(world, {"CMakeLists.txt": text})
    assert len(caught.value.where) == 2


def test_tree_id_is_git_s(world: World) -> None:
    repository = Repository(world.root / "t")
    (repository.path / "link").symlink_to("a.b")
    (repository.path / "run").write_text("x")
    (repository.path / "run").chmod(0o755)
    (repository.path / "empty").mkdir()
    repository.commit({"a.b": "1", "a/b": "2", "a0": "3", "z/y/x": "4"})
    assert overrides.tree_id(repository.path) == repository.tree()


def test_a_server_that_stumbles_is_asked_again(world: World) -> None:
    content = tarball({"d/include/d.h": ""})
    answers = iter([503, 200, 404])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = next(answers)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content if status == 200 else b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/d.tar.gz"
        one = only(dependencies(world, populate(url)))
        assert (one.via, one.bytes_fetched) == ("origin", len(content))
        with pytest.raises(SourceError) as caught:
            dependencies(world, populate(f"{url}.gone").copy())
        server.shutdown()
    assert caught.value.where
