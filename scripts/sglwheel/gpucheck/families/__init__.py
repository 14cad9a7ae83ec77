"""What is tried, by family of operators; each backend is judged by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sglwheel.gpucheck.harness import Context, Trial

Capability = tuple[int, int]
Trials = Callable[[Context], Iterator[Trial]]


@dataclass(frozen=True)
class Backend:
    """One operator (or several that only make sense together), and where it is known to run."""

    family: str
    name: str
    operators: tuple[str, ...]
    trials: Trials
    runs_on: Callable[[Capability], bool]
    unsafe_on: Callable[[Capability], str | None]


BACKENDS: list[Backend] = []


def everywhere(capability: Capability) -> bool:
    return True


def nowhere_unsafe(capability: Capability) -> str | None:
    return None


def backend(
    family: str,
    name: str,
    *,
    operators: tuple[str, ...] = (),
    runs_on: Callable[[Capability], bool] = everywhere,
    unsafe_on: Callable[[Capability], str | None] = nowhere_unsafe,
) -> Callable[[Trials], Trials]:
    """Register a function that makes the trials of a backend.

    `runs_on` says on which compute capabilities upstream has code for it: elsewhere an error of the operator
    is an honest refusal. `unsafe_on` names a fault of upstream's that is known there; the backend is then
    reported as unsafe instead of failing the wheel.
    """

    def register(trials: Trials) -> Trials:
        BACKENDS.append(Backend(family, name, operators or (name,), trials, runs_on, unsafe_on))
        return trials

    return register


def at_least(major: int, minor: int = 0) -> Callable[[Capability], bool]:
    return lambda capability: capability >= (major, minor)


def load() -> list[Backend]:
    """Every backend, in the order of the report."""
    from sglwheel.gpucheck.families import (  # noqa: F401
        activations,
        attention,
        fp4_grouped,
        fp4_matmul,
        grouped,
        kvcache,
        matmul,
        moe,
        norms,
        projections,
        quantize,
        sampling,
        topk,
    )

    return BACKENDS
