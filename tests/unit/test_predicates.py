from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from sglwheel.series import predicates
from sglwheel.series.predicateparser import PredicateError, parse
from sglwheel.series.predicates import Facts
from sglwheel.types import CommitId, CudaArch

COMMIT = "4b817f5d7f6602fcfafe18d0333f0f108f25c4a7"


def facts(**changes: object) -> Facts:
    values: dict[str, object] = {
        "cmake": Version("3.31.10"),
        "cuda": Version("13.0.2"),
        "torch": Version("2.12.0+cu130"),
        "architectures": (CudaArch.parse("12.0a"),),
        "options": {"FA3": "OFF", "FP4": "ON", "MODE": "fast", "ZERO": "0"},
        "contains": lambda commit: commit == COMMIT,
    }
    return Facts(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "needed", "because"),
    [
        ("", True, "always needed"),
        ("cmake < 3.31", False, "cmake 3.31.10 is not < 3.31"),
        ("cmake >= 3.31", True, "cmake 3.31.10 is >= 3.31"),
        ("cuda == 13.0", False, "cuda 13.0.2 is not == 13.0"),
        ("cuda == 13.0.*", True, "cuda 13.0.2 is == 13.0.*"),
        ("cuda != 13.1.*", True, "cuda 13.0.2 is != 13.1.*"),
        ("torch <= 2.12.0", True, "torch 2.12.0 is <= 2.12.0"),
        ("architectures has 12.0a", True, "architectures (12.0a) have 12.0a"),
        ("architectures lacks 9.0a", True, "architectures (12.0a) lack 9.0a"),
        ("architectures has 12.0", False, "architectures (12.0a) lack 12.0"),
        ("option FA3 is OFF", True, "option FA3 is OFF"),
        ("option FA3 is not OFF", False, "option FA3 is OFF"),
        ("option MODE is ON", True, "option MODE is ON"),
        ("option ZERO is ON", False, "option ZERO is OFF"),
        ("option OTHER is ON", False, "option OTHER is unset"),
        ("option OTHER is OFF", False, "option OTHER is unset"),
        ("option OTHER is not OFF", True, "option OTHER is unset"),
        (f"upstream contains {COMMIT}", True, "upstream contains 4b817f5d7"),
        (f"upstream lacks {COMMIT}", False, "upstream contains 4b817f5d7"),
        (
            "cuda >= 13 and (cmake < 3.31.10 or (cmake >= 4.0 and cmake < 4.0.3))",
            False,
            "cmake 3.31.10 is not < 3.31.10 and cmake 3.31.10 is not >= 4.0",
        ),
        ("cmake < 3 or cuda > 12 and torch > 2", True, "cuda 13.0.2 is > 12 and torch 2.12.0 is > 2"),
        ("cmake<3.31 or cuda>=13", True, "cuda 13.0.2 is >= 13"),
    ],
)
def test_verdict_names_the_values(text: str, needed: bool, because: str) -> None:
    verdict = parse(text).evaluate(facts())
    assert (verdict.needed, verdict.because) == (needed, because)


def test_a_nightly_comes_before_its_release() -> None:
    nightly = facts(torch=Version("2.13.0.dev20261101+cu130"))
    assert parse("torch < 2.13").evaluate(nightly).needed
    assert not parse("torch < 2.13.0.dev20261101").evaluate(nightly).needed
    assert parse("torch == 2.13.*").evaluate(nightly).needed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cmkae < 3", "did you mean 'cmake'?"),
        ("cmake", "expected < or <= or > or >= or == or !=, found the end at column 6"),
        ("cmake < banana", "'banana' is not a version"),
        ("cmake < 3 and", "expected one of cmake, cuda, torch, architectures, option, upstream"),
        ("cmake < 3 cuda > 2", "expected `and`, `or` or the end, found 'cuda' at column 11"),
        ("(cmake < 3", "expected `)`, found the end"),
        ("cmake < 3)", "found ')'"),
        ("cmake < 3.*", "`.*` goes with == and != only"),
        ("cmake ! 3", "this sign means nothing here"),
        ("architectures has sm_120a", "write 12.0a"),
        ("option X is maybe", "expected ON or OFF, found 'maybe'"),
        ("option X is not", "expected ON or OFF, found the end"),
        ("upstream contains 4b817f5d7", "short commit id"),
        ("not cmake < 3", "expected one of"),
        ("(" * 60 + "cmake < 3" + ")" * 60, "too many parentheses"),
        ("torch == 2.12.0+cu130", "local part"),
    ],
)
def test_errors_say_where_and_what(text: str, message: str) -> None:
    with pytest.raises(PredicateError) as caught:
        parse(text)
    assert message in str(caught.value)


VERSIONS = st.lists(st.integers(0, 40), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
SINGLE = st.one_of(
    st.builds(
        lambda subject, symbol, version: f"{subject} {symbol} {version}",
        st.sampled_from(["cmake", "cuda", "torch"]),
        st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
        VERSIONS,
    ),
    st.builds(
        lambda subject, symbol, version: f"{subject} {symbol} {version}.*",
        st.sampled_from(["cmake", "cuda", "torch"]),
        st.sampled_from(["==", "!="]),
        VERSIONS,
    ),
    st.builds(
        lambda verb, arch: f"architectures {verb} {arch}",
        st.sampled_from(["has", "lacks"]),
        st.sampled_from(["9.0a", "12.0a", "12.0f", "8.9"]),
    ),
    st.builds(
        lambda name, verb, value: f"option {name} is {verb}{value}",
        st.sampled_from(["FA3", "FP4", "OTHER"]),
        st.sampled_from(["", "not "]),
        st.sampled_from(["ON", "OFF"]),
    ),
    st.builds(
        lambda verb, commit: f"upstream {verb} {commit}",
        st.sampled_from(["contains", "lacks"]),
        st.sampled_from([COMMIT, "0" * 40]),
    ),
)


def _join(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda word, parts: f" {word} ".join(f"({part})" for part in parts),
        st.sampled_from(["and", "or"]),
        st.lists(children, min_size=2, max_size=3),
    )


TEXTS = st.recursive(SINGLE, _join, max_leaves=8)


@given(TEXTS)
def test_canonical_text_reads_back_to_the_same_value(text: str) -> None:
    predicate = parse(text)
    again = parse(str(predicate))
    assert again == predicate
    assert str(again) == str(predicate)


@given(TEXTS, st.sampled_from(["and", "or"]), TEXTS)
def test_junctions_mean_what_they_say(left: str, word: str, right: str) -> None:
    values = [parse(text).evaluate(facts()).needed for text in (left, right)]
    joined = parse(f"({left}) {word} ({right})").evaluate(facts())
    assert joined.needed == (all(values) if word == "and" else any(values))
    assert joined.because


@given(st.text(alphabet="cmake uptorhns<>=!().0123459aON\t\u00e9", max_size=40))
def test_any_text_parses_or_says_why(text: str) -> None:
    try:
        predicate = parse(text)
    except PredicateError as error:
        assert str(error)
    else:
        assert parse(str(predicate)) == predicate


def test_commit_ids_are_full() -> None:
    predicate = parse(f"upstream lacks {COMMIT}")
    assert isinstance(predicate, predicates.Upstream)
    assert isinstance(predicate.commit, CommitId)
