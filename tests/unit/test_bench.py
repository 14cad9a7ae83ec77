"""What the bench is made of: fake compilers under real limits, and its report."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from sglwheel import bench, cli
from sglwheel.bench import Ratio, Setting, comparisons, fakes, recordings, scheduling, together
from sglwheel.bench.comparisons import Comparison, Kept
from sglwheel.bench.together import Compile
from sglwheel.build.budget import Budget
from sglwheel.build.costs import Cost, Costs
from sglwheel.build.recording import Recording
from sglwheel.build.units import Finished
from sglwheel.errors import BuildError, UsageError
from sglwheel.files import Layout

MIB = 1 << 20


def test_a_fixed_j_is_killed_where_the_governor_brings_every_unit_to_its_end(tmp_path: Path) -> None:
    units = [fakes.Fake(f"u{number}", 1.0, 100 * MIB) for number in range(6)]
    limit = 250 * MIB
    plain = fakes.fixed(units, tmp_path / "plain", width=6, limit=limit)
    assert plain.killed and plain.failed
    ours = fakes.governed(units, tmp_path / "ours", slots=6, limit=limit)
    assert (ours.killed, ours.failed) == (0, False)
    assert ours.peak <= limit
    assert len(list((tmp_path / "ours").glob("u*.o"))) == 6


def test_who_stands_for_the_kernel_charges_what_it_would(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(fakes, "memory_cgroup", lambda *_: None)
    # Sixty launchers wait at once, with one interpreter's pages in memory.
    small = [fakes.Fake(f"u{number}", 0.05, 20 * MIB) for number in range(60)]
    ours = fakes.governed(small, tmp_path / "ours", slots=2, limit=50 * MIB)
    assert (ours.killed, ours.failed) == (0, False)
    large = [fakes.Fake(f"u{number}", 1.0, 100 * MIB) for number in range(4)]
    assert fakes.fixed(large, tmp_path / "plain", width=4, limit=200 * MIB).killed


def test_the_table_is_the_real_wheels() -> None:
    units = fakes.table(memory=16, time=16)
    assert len(units) == 100
    assert max(units, key=lambda unit: unit.peak).name == "fp8_gemm_kernel"
    assert fakes.bound(units, 16) == max(unit.seconds for unit in units)
    assert fakes.bound(units, 2) == sum(unit.seconds for unit in units) / 2


def test_simulated_bars_hold(tmp_path: Path) -> None:
    ratios = list(scheduling.simulated(Setting(Layout(tmp_path), tmp_path)))
    assert [ratio.what for ratio in ratios if ratio.met is False] == []
    assert any(ratio.met for ratio in ratios)


def test_a_report_has_median_spread_and_verdict() -> None:
    ratio = Ratio("wall", [1.2, 1.0, 1.04], 1.05, note="n")
    assert ratio.met and ratio.line().split() == [
        *("wall", "1.040", "(1.000", "to", "1.200,", "n=3)", "<=", "1.05", "met", "n")
    ]
    assert not Ratio("wall", [1.2], 1.05).met and "MISSED" in Ratio("wall", [1.2], 1.05).line()
    assert Ratio("wall", [1.2]).met is None


def test_every_usual_part_exists_and_an_unknown_one_is_named(capsys, monkeypatch, tmp_path: Path) -> None:
    assert set(bench.USUAL) <= set(bench.parts())
    for name in ("recipes", "patches"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("SGLWHEEL_ROOT", str(tmp_path))
    try:
        cli.main(["bench", "speed"])
    except SystemExit as ended:
        assert ended.code == 2
    assert "no such part of the bench: speed" in capsys.readouterr().err


def test_recordings_give_overhead_and_the_bounds_ratio(tmp_path: Path) -> None:
    logs = tmp_path / ".work" / "tiny" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "tiny.toml").touch()
    recording = Recording(logs / "build-0.jsonl")
    recording.begin(slots=16, memory=1, total=1)
    begun = time.monotonic()
    recording.compiled(Finished("long.o", 0, 10.0, 10.0, 1), "done", begun)
    recording.compiled(Finished("short.o", 0, 6.0, 6.0, 1), "done", begun + 5.0)
    recording.close(overhead=0.08)
    own, wall = recordings.recorded(Setting(Layout(tmp_path), tmp_path))
    assert own.median == pytest.approx(0.5) and own.met
    assert wall.median == pytest.approx(1.1, abs=0.01)


def test_a_recording_is_held_against_ninjas_order_with_the_same_seconds(tmp_path: Path) -> None:
    logs = tmp_path / ".work" / "tiny" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "tiny.toml").touch()
    first, second, last = Costs().stems[0], Costs().stems[1], Costs().stems[-1]
    recording = Recording(logs / "build-0.jsonl")
    recording.begin(slots=2, memory=1, total=1)
    begun = time.monotonic()
    # The long one, which ninja starts last, was started first.
    recording.compiled(Finished(f"x.dir/{last}.cu.o", 0, 10.0, 10.0, 3), "done", begun)
    recording.compiled(Finished(f"x.dir/{first}.cu.o", 0, 5.0, 5.0, 1), "done", begun)
    recording.compiled(Finished(f"x.dir/{second}.cu.o", 0, 5.0, 5.0, 1), "done", begun + 5.0)
    recording.close()
    plain = list(recordings.recorded(Setting(Layout(tmp_path), tmp_path)))[-1]
    assert plain.median == pytest.approx(10 / 15, abs=0.01)
    assert "up to 3 B at once" in plain.note or "up to 4 B at once" in plain.note


def test_compiles_run_beside_each_other_as_memory_allows_and_each_is_metered(tmp_path: Path) -> None:
    def compile_of(name: str, peak: int, words: str) -> Compile:
        sh = ("sh", "-c", f"set -e; {words}; touch $2", "sh", "-o", "replaced")
        return Compile("tiny", name, sh, tmp_path, Cost(1.0, peak))

    mark = tmp_path / "running"
    alone = f"mkdir {mark} && sleep 0.2 && rmdir {mark}"
    busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
    large = [compile_of(f"large{number}", 600, alone) for number in range(3)]
    small = [compile_of("busy", 100, busy), compile_of("idle", 100, "sleep 0.1")]
    budget = Budget(4, memory=1000)
    spent = dict(together.metered([large, small], tmp_path, budget))
    assert [len(spent[index]) for index in range(2)] == [3, 2]  # two large ones at once would have failed
    assert spent[1][0] > 5 * spent[1][1]
    assert list(tmp_path.iterdir()) == []
    broken = compile_of("broken", 1, "echo no such header >&2; false")
    with pytest.raises(BuildError, match="compiling broken of tiny failed") as caught:
        list(together.metered([[broken], small], tmp_path, budget))
    assert "no such header" in str(caught.value)


def test_what_is_compared_is_compiled_together(tmp_path: Path) -> None:
    """An hour that ends early must leave whole comparisons, so none waits for the short half of it."""

    def compile_of(name: str, seconds: float) -> Compile:
        words = ("sh", "-c", f"echo {name} >> {tmp_path}/order; sleep 0.1; touch $2", "sh", "-o", "replaced")
        return Compile("tiny", name, words, tmp_path, Cost(seconds, 1))

    groups = [[compile_of(f"short{number}", 1.0), compile_of(f"long{number}", 9.0)] for number in range(3)]
    done = [index for index, _ in together.metered(groups, tmp_path, Budget(1, memory=1000))]
    assert done == [0, 1, 2]
    order = (tmp_path / "order").read_text().split()
    assert order == ["long0", "short0", "long1", "short1", "long2", "short2"]


def _comparison(tmp_path: Path, name: str, words: str) -> Comparison:
    """Theirs burns four times ours; each compile leaves a line in `compiled`."""
    busy = "i=0; while [ $i -lt $((%d*30000)) ]; do i=$((i+1)); done"
    busy = f"echo {name} >> {tmp_path}/compiled; {words}; {busy}"
    ours, theirs = (
        Compile(
            "tiny", name, ("sh", "-c", f"{busy % n}; touch $2", "sh", "-o", "out"), tmp_path, Cost(1.0, 1)
        )
        for n in (1, 4)
    )
    return Comparison(name, [ours], [theirs], "toolchain 1")


def test_comparisons_go_on_where_a_run_ended(tmp_path: Path, capsys) -> None:
    keep, scratch = tmp_path / "kept.jsonl", tmp_path / "scratch"
    scratch.mkdir()
    budget = Budget(1, memory=1000)
    first, second = (
        _comparison(tmp_path, "first", "true"),
        _comparison(tmp_path, "second", "false; set -e; false"),
    )
    with pytest.raises(BuildError, match="compiling second"):
        comparisons.measure([first, second], Kept(keep), scratch, budget)
    keep.write_text(keep.read_text() + '{"name": "sec')  # and a crash tore the next line
    (tmp_path / "compiled").unlink()
    second = _comparison(tmp_path, "second", "true")
    found = comparisons.measure([first, second], Kept(keep), scratch, budget)
    assert (tmp_path / "compiled").read_text().split() == ["second", "second"]
    assert found["first"].factor == pytest.approx(4, rel=0.5)
    # Both are there now; another compiler's are others.
    again = comparisons.measure([first, second], Kept(keep), scratch, budget)
    assert again == found
    capsys.readouterr()
    comparisons.measure([replace(first, versions="toolchain 2")], Kept(keep), scratch, budget)
    assert "kept, but of other commands or versions, so again: first" in capsys.readouterr().err


def test_large_and_small_comparisons_take_turns(tmp_path: Path) -> None:
    def comparison(name: str, peak: int) -> Comparison:
        busy = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"
        words = ("sh", "-c", f"echo {name} >> {tmp_path}/order; {busy}; touch $2", "sh", "-o", "replaced")
        item = Compile("tiny", name, words, tmp_path, Cost(1.0, peak))
        return Comparison(name, [item], [item], "toolchain")

    peaks = {"small": 1, "large": 90, "middle": 20, "smaller": 0, "largest": 100}
    wanted = [comparison(name, peak) for name, peak in peaks.items()]
    comparisons.measure(wanted, Kept(None), tmp_path, Budget(1, memory=1000))
    order = (tmp_path / "order").read_text().split()
    assert order[::2] == ["largest", "small", "large", "smaller", "middle"]


def test_a_comparison_is_the_same_in_another_checkout(tmp_path: Path) -> None:
    def compile_of(root: str, define: str) -> Compile:
        words = ("nvcc", f"-I{root}/include", define, "-c", f"{root}/x.cu", "-o", f"{root}/x.o")
        return Compile("tiny", "x", words, Path(root), Cost(1.0, 1))

    one, moved, other = (
        Comparison("x", [item], [item], "toolchain").commands
        for item in (compile_of("/a", "-DX"), compile_of("/b/c", "-DX"), compile_of("/a", "-DY"))
    )
    assert one == moved != other


def test_measurements_that_cannot_be_kept_are_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot keep measurements") as caught:
        Kept(tmp_path / "missing" / "kept.jsonl")
    assert "--keep" in str(caught.value.next)
