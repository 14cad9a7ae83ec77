"""Which packages a recipe's build environment and toolkit have, and where the locks that say so lie."""

from __future__ import annotations

from sglwheel import console, cudahome, host, packages
from sglwheel import recipe as recipes
from sglwheel.errors import ToolchainError, UsageError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.packages import Lock
from sglwheel.recipe import Recipe
from sglwheel.torchpin import TorchPin

# torch requires setuptools from Python 3.12 on, and CMake helpers of older ones load it.
_ALSO = ("setuptools",)


class Pylocks:
    """The two locks of a recipe: `recipes/pylock.<id>.toml` and `recipes/pylock.<id>-toolkit.toml`.

    They speak of the recipe as its file says; with a torch from the command line they lie under the work
    directory instead, and those in recipes/ stay as they are.
    """

    def __init__(self, recipe: Recipe, pin: TorchPin, layout: Layout, mirrors: Mirrors | None) -> None:
        self._recipe = recipe
        self._pin = pin
        # At install time the nearest copy will do: hashes decide what is taken.
        self.index = pin.index_url
        if mirrors is not None and pin.index_url is not None:
            self.index = next(iter(mirrors.candidates(pin.index_url)), pin.index_url)
        self._own = _own_pins(recipe, layout)
        # PEP 751 allows one word without dots between `pylock.` and `.toml`.
        self._name = recipe.id.replace(".", "-") or "unnamed"
        self._recipes = layout.recipes
        self._work = layout.work / recipe.id / "locks"
        self._suffix = f"-torch{str(pin.version).replace('.', '-')}-{pin.cuda}"

    def environment(self) -> Lock:
        """The lock of the environment with torch in it. Raises ToolchainError."""
        build = self._recipe.build
        requirements = (
            self._pin.requirement,
            f"cmake=={build.cmake_version}",
            f"ninja=={build.ninja_version}",
            f"scikit-build-core=={build.scikit_build_core_version}",
            *_ALSO,
        )
        return self._lock(requirements, "", self._pin.index_url)

    def toolkit(self, environment: Lock) -> Lock:
        """The lock of the toolkit that fits torch. Raises ToolchainError.

        Of the same CUDA release it is made of the wheels that torch runs with: downloaded once, and linked
        against as they will be loaded. cublas is taken apart, because torch moves it ahead of its toolkit
        (2.12.0: 13.1.1.3 over 13.1.0.3).
        """
        wanted = self._recipe.build.cuda_toolkit
        theirs = environment.version("cuda-toolkit")
        cublas = environment.version("nvidia-cublas")
        same = theirs is not None and theirs.release[:2] == wanted.release[:2]
        exact = f"=={wanted.major}.{wanted.minor}.*"
        if len(wanted.release) > 2:
            exact = f"=={wanted}"
        elif same:
            exact = f"=={theirs}"
        if same and cublas is not None:
            requirements = [f"cuda-toolkit[{','.join(cudahome.EXTRAS)}]{exact}", f"nvidia-cublas=={cublas}"]
        else:
            requirements = [f"cuda-toolkit[{','.join((*cudahome.EXTRAS, 'cublas'))}]{exact}"]
        return self._lock(tuple(requirements), "-toolkit", None)

    def _lock(self, requirements: tuple[str, ...], kind: str, index: str | None) -> Lock:
        stored = self._recipes / f"pylock.{self._name}{kind}.toml"
        private = self._work / f"pylock.{self._name}{self._suffix}{kind}.toml"
        for path in (stored, private) if self._own else (private,):
            present = packages.read(path)
            if present is not None and present.requirements == requirements:
                return present
        console.detail(f"resolving {', '.join(one.split('[')[0] for one in requirements)}")
        floor = self._recipe.build.python or host.PYTHON_FLOOR
        python = f"{floor.major}.{floor.minor}"
        if self._own:
            try:
                return packages.resolve(requirements, stored, python=python, index=index, public=True)
            except ToolchainError:
                if not packages.has_own_index():
                    raise
        # This site's indexes may be all that it reaches; their addresses do not belong into recipes/.
        return packages.resolve(requirements, private, python=python, index=index, public=False)


def _own_pins(recipe: Recipe, layout: Layout) -> bool:
    """Whether this is the recipe as its file says."""
    try:
        stored = recipes.load(layout, recipe.id)
    except UsageError:
        return False
    return stored.torch == recipe.torch and stored.build == recipe.build
