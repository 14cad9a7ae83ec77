"""What this build may take now: the host's memory and cores, less a reserve, less what other builds have."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglwheel.build.ledger import Others
from sglwheel.build.limits import Host

_STALLED = 20.0  # percent of PSI `full` from which on the host is in trouble
_UNEASY = 5.0  # and from which on no more is started


@dataclass(frozen=True)
class Allowance:
    """What a user lets a build take: compilers at once (None: the cores), bytes for all, bytes left alone."""

    jobs: int | None = None
    memory: int | None = None
    reserve: int | None = None

    def budget(self) -> Budget:
        """With this host's limits."""
        host = Host()
        return Budget(self.jobs or host.cores(), self.memory, self.reserve, host)


@dataclass
class Budget:
    """`slots` compilers at once at most; `memory` bytes for all of them together, if given.

    `reserve` bytes stay free for other work (None: a twentieth of the host's memory).
    """

    slots: int
    memory: int | None = None
    reserve: int | None = None
    host: Host = field(default_factory=Host)
    others: Others = field(default_factory=Others)

    def __post_init__(self) -> None:
        self._cores = max(self.slots, self.host.cores())
        self._reserve = self.host.reserve() if self.reserve is None else self.reserve

    def room(self, resident: int = 0) -> int:
        """Bytes that all our compilers together may have now; `resident` is what they have already."""
        free = self.host.memory_available() - self._reserve - self.others.promised - self.others.wanted
        room = free + resident
        return room if self.memory is None else min(room, self.memory)

    def ever(self) -> int:
        """Bytes that one compiler could have if nothing else ran here; swap counts, as a last resort."""
        most = self.host.memory_total() + self.host.swap_free()
        return most if self.memory is None else min(most, self.memory)

    def slots_beside(self) -> int:
        """How many we may run where other builds use cores, too; one is always ours."""
        return max(1, min(self.slots, self._cores - self.others.running))

    @property
    def uneasy(self) -> bool:
        """Whether work here already waits for memory."""
        return self.host.stalled() >= _UNEASY

    def missing(self, resident: int) -> int:
        """Bytes that have to be given back now, 0 as long as all is well.

        Half of the reserve is for estimates that are a little wrong; when that is gone, all of it is asked
        back, so that it does not happen again at once.
        """
        available = self.host.memory_available()
        missing = 0
        if available < self._reserve // 2:
            missing = self._reserve - available
        elif self.host.stalled() >= _STALLED:
            missing = 1
        if self.memory is not None:
            missing = max(missing, resident - self.memory)
        return missing
