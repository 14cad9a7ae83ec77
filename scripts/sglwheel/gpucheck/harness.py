"""Run one operator the hard way and judge what it wrote."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Tensor = Any
_GUARD_BYTES = 1024
# Each run poisons differently: what an operator does not write then differs between runs.
_POISON_BYTES = (0xFF, 0xD7)
_HINTS = frozenset({"enable_pdl"})
_RENAMED = {"output": "out"}


class SignatureError(Exception):
    """An operator of this wheel takes other arguments than the ones that this suite knows."""


class Outputs:
    """Memory for results: poisoned, and with guards on both sides.

    Floats are filled with NaN, integers with a pattern; `run` is 0 or 1 and chooses it.
    """

    def __init__(self, run: int, device: Any) -> None:
        self.run, self.device = run, device
        self._guards: list[tuple[str, Tensor, Tensor]] = []

    def new(self, *shape: int, dtype: Any, name: str = "out", fill: float | None = None) -> Tensor:
        """A contiguous tensor full of poison, or of `fill` where the operator adds to what is there."""
        count = 1
        for size in shape:
            count *= size
        size = count * torch.empty(0, dtype=dtype).element_size()
        room = -(-size // 16) * 16
        whole = torch.full(
            (room + 2 * _GUARD_BYTES,), _POISON_BYTES[self.run], dtype=torch.uint8, device=self.device
        )
        inner = whole[_GUARD_BYTES : _GUARD_BYTES + size].view(dtype)
        if fill is not None:
            inner.fill_(fill)
        elif dtype.is_floating_point and dtype.itemsize > 1:
            inner.fill_(float("nan"))
        self._guards.append((name, whole[:_GUARD_BYTES], whole[_GUARD_BYTES + size :]))
        return inner.view(shape)

    def copy(self, values: Tensor, name: str = "out") -> Tensor:
        """A copy for an operator that works in place."""
        made = self.new(*values.shape, dtype=values.dtype, name=name)
        made.copy_(values)
        return made

    def dirty(self, size: int) -> None:
        """Leave NaN in memory that the allocator hands out next: for operators that allocate their result."""
        kept = [torch.full((size,), 0xFF, dtype=torch.uint8, device=self.device) for _ in range(2)]
        del kept

    def overrun(self) -> str | None:
        """Which output was written beyond its end or before its start."""
        for name, before, after in self._guards:
            poison = _POISON_BYTES[self.run]
            if not bool((before == poison).all()) or not bool((after == poison).all()):
                return f"{name}: wrote outside of the tensor"
        return None


@dataclass(frozen=True)
class Judgement:
    """Error in units of the bound: above 1 fails. Infinite where a NaN, an infinity or poison is left."""

    ratio: float
    detail: str = ""


@dataclass(frozen=True)
class Trial:
    """One shape: `run` computes with fresh outputs, `judge` compares with the reference."""

    label: str
    run: Callable[[Outputs], Mapping[str, Tensor]]
    judge: Callable[[Mapping[str, Tensor]], Iterator[Judgement]]
    repeatable: bool = True
    """Whether upstream promises the same bits each time; where it does not, both runs are judged."""


@dataclass
class Context:
    """What trials are made from: a device, a seeded generator, and the wheel's operators."""

    device: Any
    seed: int
    namespace: str
    capability: tuple[int, int]
    largest: int | None = None
    """Leave out shapes whose sizes multiply to more: for slow devices."""
    generator: Any = field(init=False)

    def __post_init__(self) -> None:
        self.reseed(0)

    def reseed(self, salt: int) -> None:
        """Start a stream of random numbers that depends on the seed and `salt` alone."""
        self.generator = torch.Generator(device=self.device)
        self.generator.manual_seed(self.seed * 1_000_003 + salt)

    def sized(self, shapes: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The shapes that this device shall be asked for."""
        return [s for s in shapes if self.largest is None or math.prod(s) <= self.largest]

    def normal(self, *shape: int, dtype: Any = torch.float32, scale: float = 1.0) -> Tensor:
        drawn = torch.randn(*shape, generator=self.generator, device=self.device, dtype=torch.float32)
        return (drawn * scale).to(dtype)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: Any = torch.float32) -> Tensor:
        drawn = torch.rand(*shape, generator=self.generator, device=self.device, dtype=torch.float32)
        return (drawn * (high - low) + low).to(dtype)

    def integers(self, *shape: int, low: int, high: int, dtype: Any = torch.int32) -> Tensor:
        """From `low` to `high` - 1."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device).to(dtype)

    def permutation(self, count: int) -> Tensor:
        return torch.rand(count, generator=self.generator, device=self.device).argsort()

    def has(self, name: str) -> bool:
        return hasattr(getattr(torch.ops, self.namespace), name)

    def call(self, name: str, **values: Any) -> Any:
        """Call an operator by its arguments' names. Raises SignatureError when it has others.

        Hints about speed are left out where the operator does not take them.
        """
        operator = getattr(getattr(torch.ops, self.namespace), name).default
        arguments = operator._schema.arguments
        known = {argument.name for argument in arguments}
        values = {key: value for key, value in values.items() if key in known or key not in _HINTS}
        values = {
            _RENAMED[key] if key not in known and key in _RENAMED else key: value
            for key, value in values.items()
        }
        lacking = [a.name for a in arguments if a.name not in values and not a.has_default_value()]
        unknown = sorted(values.keys() - known)
        if lacking or unknown:
            raise SignatureError(
                f"{name} takes {', '.join(lacking) or 'nothing'} that this suite does not give"
                + (f", and no {', '.join(unknown)}" if unknown else "")
            )
        return operator(*[values.get(a.name, a.default_value) for a in arguments])


def within(name: str, actual: Tensor, exact: Tensor, bound: Tensor) -> Judgement:
    """Every element within its bound of the exact value."""
    if actual.shape != exact.shape:
        return Judgement(float("inf"), f"{name}: shape {tuple(actual.shape)}, expected {tuple(exact.shape)}")
    if actual.numel() == 0:
        return Judgement(0.0)
    given = actual.double()
    ratio = ((given - exact).abs() / bound).nan_to_num(nan=float("inf"), posinf=float("inf"))
    worst = int(ratio.argmax())
    value = float(ratio.flatten()[worst])
    if value <= 1.0:
        return Judgement(value)
    wrong = int((ratio > 1.0).sum())
    lost = int((~given.isfinite()).sum())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), ratio.shape))
    return Judgement(
        value,
        f"{name}{list(place)} is {given.flatten()[worst]:.6g}, exact {exact.flatten()[worst]:.6g} "
        f"± {bound.flatten()[worst]:.2g}; {wrong} of {ratio.numel()} wrong, {lost} of them not finite",
    )


def between(name: str, actual: Tensor, low: Tensor, high: Tensor) -> Judgement:
    """Every element from `low` to `high`: where rounding may fall on either side."""
    given = actual.double()
    wrong = ~((given >= low) & (given <= high))
    count = int(wrong.sum())
    if not count:
        return Judgement(0.0)
    worst = int(wrong.flatten().int().argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), wrong.shape))
    return Judgement(
        float("inf"),
        f"{name}{list(place)} is {given.flatten()[worst]:.6g}, expected {low.flatten()[worst]:.6g} "
        f"to {high.flatten()[worst]:.6g}; {count} of {wrong.numel()} wrong",
    )


def exactly(name: str, actual: Tensor, expected: Tensor) -> Judgement:
    """The same bits."""
    if actual.shape != expected.shape:
        return Judgement(
            float("inf"), f"{name}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
        )
    wrong = _bytes(actual) != _bytes(expected.to(actual.dtype))
    count = int(wrong.sum())
    return Judgement(
        float("inf") if count else 0.0, f"{name}: {count} of {wrong.numel()} bytes differ" if count else ""
    )


def holds(name: str, true: bool, detail: str) -> Judgement:
    """A property of the whole result."""
    return Judgement(0.0 if true else float("inf"), "" if true else f"{name}: {detail}")


def _bytes(values: Tensor) -> Tensor:
    return (
        values.contiguous().flatten().view(torch.uint8)
        if values.dim()
        else values.reshape(1).view(torch.uint8)
    )


def perform(trial: Trial, device: Any) -> Judgement:
    """Run a trial twice over differently poisoned memory; judge one and compare the other bit by bit."""
    results = []
    for run in (0, 1):
        outputs = Outputs(run, device)
        results.append(dict(trial.run(outputs)))
        synchronize(device)
        overrun = outputs.overrun()
        if overrun:
            return Judgement(float("inf"), overrun)
    worst = Judgement(0.0)
    for result in results[:1] if trial.repeatable else results:
        for judgement in trial.judge(result):
            if judgement.ratio > 1.0:
                return judgement
            worst = max(worst, judgement, key=lambda each: each.ratio)
    for name in results[0] if trial.repeatable else ():
        differing = int((_bytes(results[0][name]) != _bytes(results[1][name])).sum())
        if differing:
            return Judgement(
                float("inf"),
                f"{name}: {differing} bytes differ between two runs: unwritten, or not deterministic",
            )
    return worst


def synchronize(device: Any) -> None:
    """Let errors of kernels that still run come up here."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
