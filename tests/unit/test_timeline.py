"""A build's recording as lines, trace and page."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglwheel import timeline
from sglwheel.build import happened
from sglwheel.build.costs import Cost, Costs
from sglwheel.build.happened import Compile, History
from sglwheel.errors import UsageError
from sglwheel.files import Layout
from sglwheel.timeline import page

EVENTS = [
    {"event": "begin", "date": "2026-12-01T15:00:00Z", "slots": 2, "memory": 20 << 30, "total": 24 << 30},
    {"event": "memory", "at": 2.0, "resident": 3 << 30},
    {
        "event": "unit",
        "unit": "CMakeFiles/x.dir/csrc/gemm/a.cu.o",
        "start": 0.5,
        "seconds": 60,
        "cpu": 58.5,
        "peak": 4 << 30,
        "outcome": "done",
    },
    {
        "event": "unit",
        "unit": "CMakeFiles/x.dir/csrc/moe/<b>.cu.o",
        "start": 1,
        "seconds": 9,
        "cpu": 8,
        "peak": 2 << 30,
        "outcome": "requeued",
    },
    {"event": "begin", "date": "2026-12-01T16:00:00Z", "slots": 2, "memory": 20 << 30, "total": 24 << 30},
    {
        "event": "unit",
        "unit": "CMakeFiles/x.dir/csrc/moe/<b>.cu.o",
        "start": 0.5,
        "seconds": 20,
        "cpu": 20,
        "peak": 2 << 30,
        "outcome": "done",
    },
    {
        "event": "unit",
        "unit": "CMakeFiles/x.dir/csrc/c.cc.o",
        "start": 0.5,
        "seconds": 0.1,
        "cpu": 0.1,
        "peak": 1 << 20,
        "outcome": "done",
        "cached": "local",
    },
    {"event": "end", "at": 21.0},
]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    logs = tmp_path / ".work" / "tiny" / "logs"
    logs.mkdir(parents=True)
    lines = [json.dumps(event) for event in EVENTS]
    (logs / "build-0123456789ab.jsonl").write_text("\n".join([*lines, '{"event": "unit", "un']))
    return Layout(tmp_path)


def test_sums_over_interrupted_runs(layout: Layout) -> None:
    found = timeline.load(layout, "tiny", "0123")
    facts = found.to_json()
    assert facts["seconds"] == pytest.approx(60.5 + 21.0)
    assert facts["cpu_seconds"] == pytest.approx(86.6)
    assert facts["peak_bytes"] == 4 << 30
    assert (facts["compiled"], facts["cache_hits"], facts["requeued"], facts["killed"]) == (2, 1, 1, 0)
    assert [run["start"] for run in facts["runs"]] == [0.0, 60.5]
    assert [line.split()[0] for line in list(found.lines())[2:]] == ["csrc/gemm/a.cu", "csrc/moe/<b>.cu"]


def test_the_trace_is_what_perfetto_reads(layout: Layout) -> None:
    trace = timeline.load(layout, "tiny").trace()
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert spans[0]["name"] == "csrc/gemm/a.cu"
    assert all(isinstance(event[key], int) for event in spans for key in ("ts", "dur", "pid", "tid"))
    assert {event["tid"] for event in spans} == {1, 2}
    assert [event["args"]["bytes"] for event in trace["traceEvents"] if event["ph"] == "C"] == [3 << 30]
    json.dumps(trace)


class Balanced(HTMLParser):
    """Fails on a tag that is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_needs_nothing_else_and_names_everything(layout: Layout) -> None:
    text = page.render(timeline.load(layout, "tiny"))
    parser = Balanced()
    parser.feed(text)
    assert not parser.open
    words = "".join(parser.text)
    assert "csrc/moe/<b>.cu · 9.0 s · 8.0 s of CPU · 2.1 GB · ended and queued again" in words
    assert "csrc/c.cc · 0.1 s · 0.1 s of CPU · 1.0 MB · from the cache" in words
    assert "continued 2026-12-01 16:00:00 UTC" in words
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert str(layout.root) not in text


def test_a_recipe_that_was_not_built(layout: Layout) -> None:
    with pytest.raises(UsageError, match="no recording of a build of tiny named ffff") as caught:
        timeline.load(layout, "tiny", "ffff")
    assert caught.value.where["there are"] == "build-0123456789ab"
    assert caught.value.next == "sglwheel build tiny"


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 50)), max_size=30))
def test_no_two_compiles_of_a_lane_overlap(spans: list[tuple[float, float]]) -> None:
    items = [Compile(f"{n}.o", start, seconds, 1, 1, "done") for n, (start, seconds) in enumerate(spans)]
    lanes = History(compiles=items).lanes()
    for lane in set(lanes):
        mine = sorted(
            (item for item, where in zip(items, lanes, strict=True) if where == lane), key=lambda i: i.start
        )
        for one, other in itertools.pairwise(mine):
            assert one.end <= other.start + 0.051


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        ("CMakeFiles/x.dir/csrc/gemm/a.cu.o", "csrc/gemm/a.cu"),
        ("mscclpp-build/CMakeFiles/y.dir/src/core.cc.o", "src/core.cc"),
        ("CMakeFiles/x.dir/home/me/.work/r/build-0123/dependencies/repo-f/csrc/n.cu.o", "repo-f/csrc/n.cu"),
        ("CMakeFiles/x.dir/_deps/y-src/csrc/n.cu.o", "y-src/csrc/n.cu"),
    ],
)
def test_names_are_sources_and_hold_no_path_of_a_host(unit: str, name: str) -> None:
    assert happened.short_name(unit) == name


def test_costs_are_known_in_another_tree(tmp_path: Path) -> None:
    here = "CMakeFiles/x.dir/home/me/.work/r/build-0123/dependencies/repo-f/csrc/n.cu.o"
    (tmp_path / "units.jsonl").write_text(Costs().line(here, code=0, seconds=5, cpu=4, peak=7))
    there = here.replace("me", "you").replace("0123", "4567")
    assert Costs(tmp_path / "units.jsonl").expect(there) == Cost(4, 7, measured=True)


@pytest.mark.parametrize("key", ["start", "seconds", "cpu", "peak"])
@pytest.mark.parametrize("value", ["1e999", "NaN", "-5", "9e15", "null"])
def test_a_recording_that_is_damaged_can_be_looked_at(layout: Layout, key: str, value: str) -> None:
    path = layout.work / "tiny/logs/build-0123456789ab.jsonl"
    event = {"event": "unit", "unit": "d.o", "start": 1, "seconds": 1, "cpu": 1, "peak": 1, "outcome": "done"}
    text = json.dumps(event).replace(f'"{key}": 1', f'"{key}": {value}')
    path.write_text(f'{path.read_text()}\n{{"event": "begin", "slots": 1e999}}\n{text}\n')
    found = timeline.load(layout, "tiny")
    assert found.to_json()["compiled"] == (4 if value == "9e15" else 3) - 1
    assert "NaN" not in json.dumps(found.to_json()) and "Infinity" not in json.dumps(found.trace())
    assert page.render(found).count("<svg") and list(found.lines())
