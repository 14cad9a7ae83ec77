"""Find what a CMake project fetches, without CMake: declarations, and what the build reads of each source."""

from sglwheel.fetchcontent.declaration import Declaration, LocalTree, Plan, Tree
from sglwheel.fetchcontent.variables import Environment
from sglwheel.fetchcontent.walker import Walker

__all__ = ["Declaration", "Environment", "LocalTree", "Plan", "Tree", "Walker"]
