"""The policy as pure functions, and played through with recorded costs and with any costs at all."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglwheel.build.costs import Cost, Costs, too_large
from sglwheel.build.diagnosis import exceeds_host
from sglwheel.build.forecast import remaining
from sglwheel.build.policy import Active, choose, victims
from sglwheel.build.simulation import Job, in_order, play

GIB = 1 << 30
RAMP = ((0.0, 0.35), (0.5, 0.7), (0.65, 1.0))

seconds = st.floats(min_value=0.1, max_value=300, allow_nan=False)
costs = st.builds(Cost, seconds=seconds, peak=st.integers(min_value=1, max_value=20 * GIB))


def shipped() -> dict[str, dict[str, float]]:
    """What is known of the real wheel's 100 units before anything was built here."""
    table = tomllib.loads((resources.files("sglwheel.build") / "data" / "units.toml").read_text("utf-8"))
    units: dict[str, dict[str, float]] = table["units"]
    return units


def recorded() -> list[Cost]:
    """The 100 units of the real wheel, in the order in which ninja starts them."""
    known = Costs()
    return [known.expect(f"{stem}.cu.o") for stem in shipped()]


def test_two_of_the_largest_never_run_together_on_24_gb() -> None:
    first, second, small = Cost(265, 15 * GIB), Cost(175, 14 * GIB), Cost(45, 3 * GIB)
    room = 22 * GIB
    assert choose([second, small, first], [], room=room, slots=8) == 2
    assert choose([second, small], [Active(first, 265)], room=room, slots=8) == 1


def test_no_slot_idles_beside_a_large_unit_that_is_overdue() -> None:
    large, next_large, small = Cost(265, 15 * GIB), Cost(175, 14 * GIB), Cost(45, 3 * GIB)
    assert choose([next_large, small], [Active(large, 0)], room=22 * GIB, slots=2) == 1


def test_small_units_do_not_starve_a_large_one() -> None:
    large, small = Cost(265, 15 * GIB), Cost(45, 3 * GIB)
    running = [Active(small, 10 + index) for index in range(6)]
    # 20 GB: room for one more small one, but the large one could start in 13 s and leave 2 GB.
    assert choose([large, small], running, room=20 * GIB, slots=8) is None
    quick, little = Cost(5, 2 * GIB), Cost(45, 1 * GIB)
    assert choose([large, quick], running, room=20 * GIB, slots=8) == 1
    assert choose([large, little], running, room=20 * GIB, slots=8) == 1


def test_what_does_not_fit_waits_while_memory_may_come_back_and_else_runs_alone() -> None:
    giant, small = Cost(10, 100 * GIB), Cost(1, GIB // 2)
    assert choose([giant, small], [], room=GIB, slots=8) == 1
    assert choose([giant], [], room=GIB, slots=8, patient=True) is None
    assert choose([giant], [], room=GIB, slots=8) == 0
    assert choose([giant], [Active(Cost(1, 1), 1)], room=GIB, slots=8) is None


def test_the_youngest_are_ended_until_there_is_enough_and_never_the_oldest() -> None:
    running = [(10.0, 8 * GIB), (30.0, 1 * GIB), (20.0, 4 * GIB)]
    assert victims(running, 0) == []
    assert victims(running, GIB // 2) == [1]
    assert victims(running, 2 * GIB) == [1, 2]
    assert victims(running, 50 * GIB) == [1, 2]
    assert victims(running[:1], 50 * GIB) == []


@settings(deadline=None, max_examples=60)
@given(
    units=st.lists(costs, min_size=1, max_size=30),
    room=st.integers(min_value=1, max_value=64 * GIB),
    slots=st.integers(min_value=1, max_value=16),
)
def test_every_unit_ends_and_memory_is_kept(units: list[Cost], room: int, slots: int) -> None:
    played = play(map(Job, units), room=room, slots=slots)
    assert sorted(index for index, _, _ in played.spans) == list(range(len(units)))
    assert played.requeued == 0, "estimates are right, so nothing is ended"
    largest = max(cost.peak for cost in units)
    assert played.most <= max(room, largest), "beyond the room only what could not run otherwise"


@settings(deadline=None, max_examples=60)
@given(
    units=st.lists(st.tuples(costs, st.floats(min_value=0.1, max_value=8)), min_size=1, max_size=20),
    slots=st.integers(min_value=1, max_value=12),
    spare=st.floats(min_value=1.0, max_value=3.0),
)
def test_wrong_estimates_are_corrected_and_every_unit_ends(
    units: list[tuple[Cost, float]], slots: int, spare: float
) -> None:
    jobs = [Job(cost, Cost(cost.seconds, max(1, int(cost.peak / wrong))), RAMP) for cost, wrong in units]
    room = int(max(cost.peak for cost, _ in units) * spare)
    played = play(jobs, room=room, slots=slots)
    assert sorted(index for index, _, _ in played.spans) == list(range(len(units)))
    assert played.over <= 0, "a schedule exists, so what remains after each correction fits"


@settings(deadline=None, max_examples=60)
@given(units=st.lists(costs, max_size=30), slots=st.integers(min_value=1, max_value=16))
def test_forecast_lies_between_its_bounds(units: list[Cost], slots: int) -> None:
    left = remaining(units, [], slots=slots, room=1 << 60)
    work, longest = sum(cost.seconds for cost in units), max((cost.seconds for cost in units), default=0)
    assert max(longest, work / slots) - 1e-6 <= left <= work + 1e-6


@pytest.mark.parametrize("slots", [1, 2, 8, 16])
def test_the_real_table_within_a_tenth_of_the_bound(slots: int) -> None:
    units = recorded()
    played = play(map(Job, units), room=1 << 60, slots=slots)
    bound = max(sum(cost.seconds for cost in units) / slots, max(cost.seconds for cost in units))
    assert played.seconds <= 1.10 * bound


def test_the_real_table_beats_every_fixed_j_that_survives() -> None:
    units = recorded()
    room = 2 * max(cost.peak for cost in units)
    jobs = [Job(cost, profile=RAMP) for cost in units]
    ours = play(jobs, room=room, slots=8)
    fixed = {width: play(jobs, room=room, slots=width, choose=in_order, evict=False) for width in range(1, 9)}
    survivors = [played.seconds for played in fixed.values() if played.over <= 0]
    assert fixed[8].over > 0
    assert ours.requeued == 0 and ours.over <= 0
    assert ours.seconds <= 1.05 * min(survivors)


@settings(deadline=None, max_examples=20)
@given(room=st.integers(min_value=16 * GIB, max_value=40 * GIB), slots=st.integers(min_value=1, max_value=16))
def test_the_real_table_with_only_defaults_known(room: int, slots: int) -> None:
    default = Costs().expect("unknown.cu.o")
    played = play([Job(cost, default, RAMP) for cost in recorded()], room=room, slots=slots)
    assert len(played.spans) == 100
    assert played.over <= 0


def test_three_hundred_units_on_one_core() -> None:
    units = [Cost(1 + index % 7, GIB) for index in range(300)]
    played = play(map(Job, units), room=2 * GIB, slots=1)
    assert played.seconds == pytest.approx(sum(cost.seconds for cost in units))


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [
        (
            "CMakeFiles/common_ops_sm100_build.dir/csrc/gemm/fp8_gemm_kernel.cu.o",
            shipped()["fp8_gemm_kernel"]["seconds"],
        ),
        ("CMakeFiles/x.dir/csrc/unknown.cu.o", 45),
        ("CMakeFiles/x.dir/csrc/unknown.cc.o", 15),
    ],
)
def test_expectations_of_a_first_build(unit: str, seconds: float) -> None:
    assert Costs().expect(unit).seconds == seconds


def test_history_survives_a_torn_line(tmp_path: Path) -> None:
    history = tmp_path / "units.jsonl"
    history.write_text('{"unit": "a.o", "code": 0, "seconds": 2, "cpu": 1.5, "peak": 7}\n{"unit": "b.o", "co')
    assert Costs(history).expect("a.o") == Cost(1.5, 7, measured=True)
    assert not Costs(history).expect("b.o").measured


@pytest.mark.parametrize("peak", ["1e999", "Infinity", "NaN", "-7", '"x"', "null", "[]"])
def test_history_that_nobody_measured_is_skipped(tmp_path: Path, peak: str) -> None:
    history = tmp_path / "units.jsonl"
    history.write_text(f'{{"unit": "a.o", "code": 0, "seconds": 2, "cpu": 1.5, "peak": {peak}}}\n')
    assert not Costs(history).expect("a.o").measured


def test_history_of_the_same_flags_counts_first_and_a_quiet_host_tells_the_time(tmp_path: Path) -> None:
    history = tmp_path / "units.jsonl"
    ours, other = Costs(flavour="ours"), Costs(flavour="other")
    history.write_text(
        ours.line("a.o", code=0, seconds=9, cpu=4, peak=7)
        + ours.line("a.o", code=0, seconds=9, cpu=8, peak=9)
        + ours.line("a.o", code=1, seconds=1, cpu=1, peak=1)
        + other.line("a.o", code=0, seconds=1, cpu=1, peak=100)
        + other.line("b.o", code=0, seconds=3, cpu=3, peak=3)
    )
    known = Costs(history, flavour="ours")
    assert known.expect("a.o") == Cost(4, 9, measured=True)
    assert known.expect("b.o") == Cost(3, 3, measured=True)


def test_units_that_no_host_like_this_could_compile_are_known_before() -> None:
    units = [
        "CMakeFiles/x.dir/fp8_gemm_kernel.cu.o",
        "CMakeFiles/x.dir/small.cu.o",
        "CMakeFiles/x.dir/w4a8_grouped_mm_c3x.cu.o",
    ]
    found = too_large(units, Costs(), 8 * GIB)
    assert [unit for unit, _ in found] == [units[0], units[2]]
    assert too_large(["CMakeFiles/x.dir/unheard-of.cu.o"], Costs(), 1) == [], "a guess refuses nothing"
    error = exceeds_host(found, 8 * GIB)
    assert error.what == (
        "the compiler of fp8_gemm_kernel.cu is expected to need 16.3 GB, this build may have 8.6 GB"
    )
    assert error.where["units"] == "fp8_gemm_kernel.cu: 16.3 GB\nw4a8_grouped_mm_c3x.cu: 14.6 GB"
    assert error.next is not None and "docs/build-farm.md" in error.next
