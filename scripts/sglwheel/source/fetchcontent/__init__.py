"""Find what a CMake project fetches, without CMake: declarations, and what the build reads of each source."""

from sglwheel.source.fetchcontent.declaration import Declaration, LocalTree, Plan, Tree
from sglwheel.source.fetchcontent.variables import Environment
from sglwheel.source.fetchcontent.walker import Walker

__all__ = ["Declaration", "Environment", "LocalTree", "Plan", "Tree", "Walker"]
