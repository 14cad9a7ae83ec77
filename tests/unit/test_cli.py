"""The command line: every verb answers, mistakes are exit 2, nox offers the same verbs."""

from __future__ import annotations

import ast
import errno
import json
from pathlib import Path

import click
import pytest

from sglwheel import cli
from sglwheel.errors import SglwheelError
from sglwheel.files import Layout

ROOT = Path(__file__).parents[2]


def call(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(argv))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("verb", sorted(cli.cli.commands))
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(verb, "--help") == 0
    assert "Usage: sglwheel" in capsys.readouterr().out


def test_defaults_are_values_that_their_options_accept() -> None:
    """Click checks a default only when the option is left out, so no test that gives the option sees it."""
    waiting: list[click.Command] = [cli.cli]
    seen = 0
    while waiting:
        command = waiting.pop()
        context = click.Context(command)
        for parameter in (one for one in command.params if not one.required):
            parameter.process_value(context, parameter.get_default(context))
            seen += 1
        waiting.extend(getattr(command, "commands", {}).values())
    assert seen > len(cli.cli.commands)


def test_a_file_that_is_no_wheel_is_inspected_with_7(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("inspect", str(ROOT / "README.md")) == 7
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("inspect", str(ROOT / "README.md"), "--json"), 7),
        (("build", "no-such-recipe", "--json"), 2),
        (("build", "--json", "--no-such-option"), 2),
    ],
)
def test_who_asked_for_json_gets_an_error_as_json(
    argv: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*argv) == code
    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert error["exit-code"] == code
    assert said.err.startswith(f"error: {error['what']}")


def test_an_interrupted_verb_says_so_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.cli, "main", interrupted)
    assert call("build", "sample", "--json") == 130
    assert json.loads(capsys.readouterr().out)["error"]["exit-code"] == 130


@pytest.mark.parametrize(
    "argv",
    [
        ("no-such-verb",),
        ("build",),
        ("build", "cu130", "--jobs", "0"),
        ("build", "no-such-recipe"),
        ("build", "sample", "--override", "tinyfmt"),
        ("build", "sample", "--override", "tinyfmt=a", "--override", "TinyFmt=b"),
        ("build", "sample", "--torch", "2.12"),
        ("inspect", "no-such.whl"),
        ("rebase", "sample"),
        ("rebase", "sample", "--to", "x", "--abort"),
        ("rebase", "sample", "--skip", "x"),
        ("lock", "--check", "--upgrade"),
        ("smoke", "x.whl", "--recipe", "sample", "--report", "gpu.json"),
        ("patch", "sample", "--edit", "--discard"),
        ("build", "sample", "--memory", "0"),
        ("build", "sample", "--memory", "1KiB"),
        ("build", "sample", "--memory", "-1"),
        ("build", "sample", "--memory", "abc"),
    ],
    ids=" ".join,
)
def test_mistakes_end_with_2(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert call(*argv) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert shown.out == ""


@pytest.mark.parametrize(
    ("verb", "code"),
    [(("build", "sample"), 6), (("timeline", "sample"), 2), (("bench", "scaled"), 6)],
)
def test_what_the_system_refuses_is_an_error_and_no_traceback(
    verb: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EROFS, "Read-only file system", "somewhere")

    monkeypatch.setattr(Layout, "find", refuse)
    assert call(*verb) == code
    shown = capsys.readouterr().err
    assert f"{verb[0]}: Read-only file system" in shown and "somewhere" in shown and "next" in shown


def test_any_stage_s_error_is_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in SglwheelError.__subclasses__():

        def fail(*_: object, kind: type[SglwheelError] = kind, **__: object) -> None:
            raise kind("no")

        monkeypatch.setattr("sglwheel.recipe.names", fail)
        assert call("recipes") == kind.exit_code
    assert "Traceback" not in capsys.readouterr().err


def test_interrupt_is_130_and_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sglwheel.recipe.names", interrupt)
    assert call("recipes") == 130
    assert "next  run the same command again: it continues" in capsys.readouterr().err


def test_nox_has_a_session_for_every_verb() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VERBS"
    )
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    # Sessions of their own are `build-<recipe>` and those that add dependencies or run more than a verb.
    assert set(ast.literal_eval(table)) | (own & {"bench", "check"}) | {"build"} == set(cli.cli.commands)
