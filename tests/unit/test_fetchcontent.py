"""What a CMake project fetches, read without CMake."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sglwheel.errors import SourceError
from sglwheel.source.fetchcontent import Declaration, Environment, Plan, Walker
from sglwheel.source.fetchcontent.cmake import UNKNOWN, Argument, Block, Command, If, expand, parse
from sglwheel.source.fetchcontent.conditions import Condition
from sglwheel.source.fetchcontent.variables import Variables

DECLARE = "FetchContent_Declare({0} GIT_REPOSITORY https://example.invalid/{0} GIT_TAG {1})\n"
ONE = "1" * 40


class Files(dict[str, str]):
    def read(self, path: str) -> str | None:
        return self.get(path)


def plan(
    files: Mapping[str, str] | str,
    *,
    options: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    fetched: Mapping[str, Mapping[str, str]] | None = None,
) -> Plan:
    files = {"CMakeLists.txt": files} if isinstance(files, str) else files
    project = Files({f"kernel/{name}": text for name, text in files.items()})

    def fetch(declaration: Declaration) -> Files:
        return Files((fetched or {})[declaration.name])

    walker = Walker(project, fetch, options or {}, Environment(environment or {}, frozenset({"PATH"})))
    return walker.walk("kernel")


def names(found: Plan) -> list[str]:
    return [declaration.name for declaration in found.declarations]


def dependency(name: str, tag: str = ONE) -> str:
    return DECLARE.format(name, tag) + f"FetchContent_Populate({name})\n"


def test_parse_commands_and_blocks() -> None:
    found = parse(
        'IF(A AND (B OR "c"))\nset(X [[$]] a;b)\nElse()\nendif()\nforeach(i IN ITEMS a)\nendforeach()'
    )
    branch, loop = found
    assert isinstance(branch, If) and isinstance(loop, Block)
    assert branch.branches[0][0] is not None
    assert [argument.text for argument in branch.branches[0][0]] == ["A", "AND", "(", "B", "OR", "c", ")"]
    assert branch.branches[0][1] == (
        Command("set", (Argument("unquoted", "X"), Argument("bracket", "$"), Argument("unquoted", "a;b")), 2),
    )
    assert branch.branches[1] == (None, ())
    assert loop.kind == "foreach"


def test_parse_survives_what_it_cannot_read() -> None:
    first, *_ = parse("set(A 1)\n)))\nset(B 2)\n")
    assert isinstance(first, Command) and first.name == "set"


def test_expand_nested_and_escaped() -> None:
    values = {"A": "b", "x_b": "deep", "path": "/usr"}

    def lookup(kind: str, name: str) -> str:
        return "env" if kind == "ENV" else values.get(name, UNKNOWN)

    assert expand("${x_${A}}/$ENV{HOME}", lookup) == "deep/env"
    assert expand(r"\${A} ${no}/y", lookup) == "${A} " + UNKNOWN + "/y"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ON", True),
        ("NOT OFF", True),
        ("LIB-NOTFOUND", False),
        ("YES_VAR", True),
        ("NO_VAR", False),
        ("UNSET_VAR", False),
        ("MYSTERY", None),
        ("NOT MYSTERY", None),
        ("MYSTERY AND OFF", False),
        ("MYSTERY OR ON", True),
        ("MYSTERY AND ON", None),
        ("OFF AND OFF OR ON", True),
        ("ON OR ON AND OFF", True),
        ("(ON OR ON) AND OFF", False),
        ('"${V}" VERSION_GREATER_EQUAL "12.8"', True),
        ("V VERSION_LESS 13", False),
        ("V VERSION_EQUAL 13.0.0", True),
        ("${MYSTERY} VERSION_GREATER 12", None),
        ("NAME STREQUAL abc", True),
        ("NAME MATCHES ^a.c$", True),
        ('"x;y" MATCHES "y"', True),
        ('"b" IN_LIST LIST', True),
        ('"d" IN_LIST LIST', False),
        ("12.0a IN_LIST LIST", False),
        ("NAME IN_LIST LIST", False),
        ("d IN_LIST LIST", None),
        ('"d" IN_LIST MYSTERY', None),
        ("10 GREATER 9", True),
        ('"abc" LESS 3', False),
        ("DEFINED NAME", True),
        ("DEFINED UNSET_VAR", False),
        ("DEFINED MYSTERY", None),
        ("DEFINED ENV{SET}", True),
        ("DEFINED ENV{PATH}", None),
        ("DEFINED ENV{OTHER}", False),
        ("EXISTS /etc", None),
        ("TARGET foo", None),
        ('"NAME"', False),
        ("NOT", None),
    ],
)
def test_conditions_have_three_values(text: str, expected: bool | None) -> None:
    values: dict[str, str | None] = {
        "YES_VAR": "ON", "NO_VAR": "OFF", "UNSET_VAR": None, "V": "13.0", "NAME": "abc", "LIST": "a;b;c",
    }  # fmt: skip
    variables = Variables(Environment({"SET": "1"}, frozenset({"PATH"})), {}, values)
    statement = parse(f"if({text})\nendif()")[0]
    assert isinstance(statement, If)
    arguments = statement.branches[0][0]
    assert arguments is not None

    def test(operator: str, operand: str) -> bool | None:
        return variables.defined(operand) if operator == "DEFINED" else None

    assert Condition(arguments, variables.lookup, variables.assigned, test).evaluate() is expected


def test_only_what_is_populated_counts() -> None:
    assert names(plan(dependency("used") + DECLARE.format("unused", ONE))) == ["used"]


def test_git_and_url_forms() -> None:
    found = plan(
        "FetchContent_Declare(Repo-A GIT_REPOSITORY https://example.invalid/a.git GIT_TAG v1\n"
        "  GIT_SUBMODULES x y)\n"
        "FetchContent_Declare(b URL https://example.invalid/b.tar.gz URL_HASH SHA256=abc SOURCE_SUBDIR in)\n"
        "FetchContent_MakeAvailable(Repo-A b)\n",
        fetched={"repo-a": {}, "b": {}},
    )
    a, b = sorted(found.declarations, key=lambda item: item.kind)
    assert (a.name, a.url, a.requested, a.submodules) == (
        "repo-a", "https://example.invalid/a.git", "v1", ("x", "y"),
    )  # fmt: skip
    assert (b.name, b.kind, b.requested, b.subdirectory) == ("b", "url", "SHA256=abc", "in")


def test_options_of_the_recipe_decide() -> None:
    text = 'option(EXTRA "" ON)\nif(EXTRA)\n' + dependency("extra") + "endif()\n"
    assert names(plan(text)) == ["extra"]
    assert names(plan(text, options={"EXTRA": "OFF"})) == []


def test_normal_variable_wins_over_the_recipe() -> None:
    text = 'option(EXTRA "" OFF)\nset(EXTRA ON)\nif(EXTRA)\n' + dependency("extra") + "endif()\n"
    assert names(plan(text, options={"EXTRA": "OFF"})) == ["extra"]


def test_undecided_branches_are_both_visited() -> None:
    text = "if(SOMETHING)\n" + dependency("a") + "else()\n" + dependency("b") + "endif()\n"
    assert names(plan(text)) == ["a", "b"]


def test_undecided_assignment_leaves_the_question_open() -> None:
    text = "set(X ON)\nif(SOMETHING)\nset(X OFF)\nendif()\nif(X)\n" + dependency("a") + "endif()\n"
    text += "if(NOT X)\n" + dependency("b") + "endif()\n"
    assert names(plan(text)) == ["a", "b"]


def test_agreeing_branches_decide() -> None:
    text = "if(SOMETHING)\nset(X OFF)\nelse()\nset(X OFF)\nendif()\nif(X)\n" + dependency("a") + "endif()\n"
    assert names(plan(text)) == []


def test_architectures_of_the_environment_decide() -> None:
    text = (
        'set(ARCHS "$ENV{TORCH_CUDA_ARCH_LIST}" CACHE STRING "")\n'
        'string(REGEX MATCHALL "[^ ,;]+" entries "${ARCHS}")\n'
        "foreach(entry IN LISTS entries)\n"
        '  string(REGEX REPLACE "[.]" "" number "${entry}")\n'
        "  list(APPEND GENCODES compute_${number})\n"
        "endforeach()\n"
        'if(GENCODES MATCHES "compute_90a")\n' + dependency("hopper") + "endif()\n"
    )
    assert names(plan(text, environment={"TORCH_CUDA_ARCH_LIST": "12.0a"})) == []
    assert names(plan(text, environment={"TORCH_CUDA_ARCH_LIST": "9.0a;12.0a"})) == ["hopper"]


def test_functions_macros_and_parent_scope() -> None:
    text = (
        "function(choose out)\n  set(${out} ON PARENT_SCOPE)\n  return()\n"
        "  set(${out} OFF PARENT_SCOPE)\nendfunction()\n"
        "macro(declare name)\n"
        "  FetchContent_Declare(${name} GIT_REPOSITORY https://example.invalid/${name} GIT_TAG ${ARGN})\n"
        "  FetchContent_Populate(${name})\nendmacro()\n"
        f"choose(X)\nif(X)\ndeclare(a {ONE})\nelse()\ndeclare(b {ONE})\nendif()\n"
    )
    assert names(plan(text)) == ["a"]


def test_return_ends_a_file() -> None:
    files = {
        "CMakeLists.txt": "include(cmake/a.cmake)\n" + dependency("after"),
        "cmake/a.cmake": dependency("a") + "return()\n" + dependency("never"),
    }
    assert names(plan(files)) == ["a", "after"]


def test_included_files_and_subdirectories() -> None:
    files = {
        "CMakeLists.txt": "project(p)\ninclude(${CMAKE_CURRENT_LIST_DIR}/cmake/a.cmake)\n"
        "add_subdirectory(sub)\nlist(APPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/modules)\n"
        "include(Mine)\ninclude(CheckCXXSourceCompiles)\n",
        "cmake/a.cmake": dependency("a") + "include(${CMAKE_CURRENT_LIST_DIR}/b.cmake)\n",
        "cmake/b.cmake": dependency("b"),
        "sub/CMakeLists.txt": "include(${CMAKE_CURRENT_SOURCE_DIR}/../cmake/c.cmake)\n",
        "cmake/c.cmake": dependency("c"),
        "modules/Mine.cmake": dependency("d"),
    }
    assert names(plan(files)) == ["a", "b", "c", "d"]


def test_fetched_projects_are_walked() -> None:
    outer = (
        DECLARE.format("outer", ONE)
        + "FetchContent_Populate(outer)\nset(OUTER_TESTS OFF)\n"
        + "add_subdirectory(${outer_SOURCE_DIR} ${CMAKE_CURRENT_BINARY_DIR}/outer)\n"
    )
    inside = (
        'option(OUTER_TESTS "" ON)\nif(OUTER_TESTS)\n' + dependency("googletest") + "endif()\n"
        "FetchContent_Declare(json URL https://example.invalid/json.tar.xz)\nFetchContent_MakeAvailable(json)\n"
        "add_subdirectory(bindings)\n"
    )
    found = plan(
        outer,
        fetched={
            "outer": {"CMakeLists.txt": inside, "bindings/CMakeLists.txt": dependency("inner")},
            "json": {},
        },
    )
    assert names(found) == ["inner", "json", "outer"]
    assert found.projects == {"outer"}


def test_references_say_what_is_read() -> None:
    found = plan(
        dependency("lib")
        + 'set(SOURCES "${lib_SOURCE_DIR}/csrc/a.cu" other.cu)\n'
        + 'file(GLOB MORE "${lib_SOURCE_DIR}/gen/deep/*_sm90.cu")\n'
        + "set(FILE ${lib_SOURCE_DIR}/patched/x.h)\nfile(READ ${FILE} content)\n"
        + "foreach(v IN ITEMS p q)\nlist(APPEND S ${lib_SOURCE_DIR}/v/${v}.cu)\nendforeach()\n"
        + "target_include_directories(t PRIVATE $<BUILD_INTERFACE:${lib_SOURCE_DIR}/include>\n"
        + "  ${lib_SOURCE_DIR}/${UNKNOWN_DIR}/x)\n"
        + 'message(STATUS "at ${lib_SOURCE_DIR}")\n'
    )
    assert found.references["lib"] == {
        "csrc/a.cu",
        "gen/deep",
        "patched/x.h",
        "v/p.cu",
        "v/q.cu",
        "include",
        ".",
    }
    # An unknown part cuts the reference down to what is certain: here, to the whole source.


def test_source_directory_survives_an_undecided_branch() -> None:
    found = plan("if(MAYBE)\n" + dependency("lib") + "endif()\nset(X ${lib_SOURCE_DIR}/include)\n")
    assert found.references["lib"] == {"include"}


def test_first_declaration_wins() -> None:
    found = plan(DECLARE.format("a", ONE) + DECLARE.format("a", "2" * 40) + "FetchContent_Populate(a)\n")
    assert found.declarations[0].requested == ONE


def test_undecidable_declaration_is_an_error() -> None:
    text = (
        "if(MAYBE)\n" + DECLARE.format("a", ONE) + "else()\n" + DECLARE.format("a", "2" * 40) + "endif()\n"
        "FetchContent_Populate(a)\n"
    )
    with pytest.raises(SourceError, match="declared in 2 ways") as caught:
        plan(text)
    assert len(caught.value.where) == 2


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (
            "FetchContent_Declare(a GIT_REPOSITORY https://example.invalid/a PATCH_COMMAND sed)",
            "command of its own",
        ),
        ("FetchContent_Declare(a GIT_REPOSITORY ${WHERE}/a GIT_TAG v1)", "known to CMake alone"),
        ("FetchContent_Declare(a SOURCE_DIR /x)", "neither GIT_REPOSITORY nor URL"),
        ("FetchContent_Declare(../a URL https://example.invalid/a.tar)", "cannot be the name"),
    ],
)
def test_what_cannot_be_fetched_ahead_is_an_error(declaration: str, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        plan("\n" + declaration + "\nFetchContent_Populate(a)\n")
    assert caught.value.where["file"] == "kernel/CMakeLists.txt:2"


def test_populating_the_undeclared_is_an_error() -> None:
    with pytest.raises(SourceError, match="nowhere declared"):
        plan("FetchContent_Populate(ghost)\n")


def test_no_cmake_project_is_an_error() -> None:
    with pytest.raises(SourceError, match=r"no CMakeLists\.txt"):
        plan({"other.txt": ""})


def test_files_that_include_each_other_end() -> None:
    with pytest.raises(SourceError, match="without end"):
        plan({"CMakeLists.txt": "include(a.cmake)", "a.cmake": "include(${CMAKE_CURRENT_LIST_DIR}/a.cmake)"})
