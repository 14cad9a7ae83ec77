"""Which packages a recipe's build environment and toolkit have, and where the locks that say so lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sglwheel import console, files
from sglwheel import recipe as recipes
from sglwheel.errors import ToolchainError, UsageError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import Recipe
from sglwheel.source import sourcelock
from sglwheel.toolchain import cudahome, host, packages, resolving, uvtool
from sglwheel.toolchain.packages import Lock
from sglwheel.toolchain.torchpin import TorchPin

# torch requires setuptools from Python 3.12 on, and CMake helpers of older ones load it.
_ALSO = ("setuptools",)


class Pylocks:
    """The two locks of a recipe: `recipes/pylock.<id>.toml` and `recipes/pylock.<id>-toolkit.toml`.

    They speak of the recipe as its file says; with a torch from the command line they lie under the work
    directory instead, and those in recipes/ stay as they are.
    """

    def __init__(
        self,
        recipe: Recipe,
        pin: TorchPin,
        layout: Layout,
        mirrors: Mirrors | None,
        *,
        anew: bool = False,
        own: bool | None = None,
        public: bool = False,
    ) -> None:
        """With `anew` what is there is resolved again; `own` None asks the recipe's file.

        With `public` a lock that would hold an address of this site is an error: it is to lie in recipes/. A
        build makes do with one under the work directory.
        """
        self._recipe = recipe
        self._pin = pin
        self._layout = layout
        self._mirrors = mirrors or Mirrors()
        self._anew = anew
        self._public = public
        # At install time the nearest copy will do: hashes decide what is taken.
        self.index = pin.index_url
        if mirrors is not None and pin.index_url is not None:
            self.index = next(iter(mirrors.candidates(pin.index_url)), pin.index_url)
        self._own = _own_pins(recipe, layout) if own is None else own
        self._name = recipe.id.replace(".", "-") or "unnamed"
        self._recipes = layout.recipes
        self._work = layout.work / recipe.id / "locks"
        self._suffix = f"-torch{str(pin.version).replace('.', '-')}-{pin.cuda}"

    @staticmethod
    def files_of(recipe_id: str, layout: Layout) -> tuple[Path, Path]:
        """Where the locks of a recipe as its file says lie: environment, then toolkit."""
        # PEP 751 allows one word without dots between `pylock.` and `.toml`.
        name = recipe_id.replace(".", "-") or "unnamed"
        return layout.recipes / f"pylock.{name}.toml", layout.recipes / f"pylock.{name}-toolkit.toml"

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.files_of(self._recipe.id, self._layout)

    def requirements(self) -> tuple[str, ...]:
        """What the environment's lock is asked for."""
        tools = self._recipe.build.tools
        return (
            self._pin.requirement,
            *(f"{name}=={version}" for name, version in tools.items()),
            *(name for name in _ALSO if name not in tools),
        )

    def environment(self) -> Lock:
        """The lock of the environment with torch in it. Raises ToolchainError."""
        return self._lock(self.requirements(), "", self._pin.index_url)

    def tools(self, names: Sequence[str]) -> Lock:
        """The lock of those build tools that an environment with torch lacks. Raises ToolchainError."""
        versions = self._recipe.build.tools
        return self._lock(tuple(f"{name}=={versions[name]}" for name in names), "-tools", None)

    def toolkit(self, environment: Lock) -> Lock:
        """The lock of the toolkit that fits torch. Raises ToolchainError."""
        return self._lock(self.toolkit_requirements(environment), "-toolkit", None)

    def toolkit_requirements(self, environment: Lock) -> tuple[str, ...]:
        """What the toolkit's lock is asked for, beside an environment.

        Of the same CUDA release it is made of the wheels that torch runs with: downloaded once, and linked
        against as they will be loaded. cublas is taken apart, because torch moves it ahead of its toolkit
        (2.12.0: 13.1.1.3 over 13.1.0.3).
        """
        wanted = self._recipe.build.toolkit
        assert wanted is not None, "nothing is compiled"
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
        return tuple(requirements)

    def _lock(self, requirements: tuple[str, ...], kind: str, index: str | None) -> Lock:
        stored = self._recipes / f"pylock.{self._name}{kind}.toml"
        private = self._work / f"pylock.{self._name}{self._suffix}{kind}.toml"
        known = [stored] if self._own else []
        known += [private] if not self._public else []
        for path in known if not self._anew else ():
            present = packages.read(path)
            if present is not None and present.requirements == requirements:
                if path == stored:
                    self._verify(stored)
                return present
        console.detail(f"resolving {', '.join(one.split('[')[0] for one in requirements)}")
        floor = self._recipe.build.python or host.PYTHON_FLOOR
        python = f"{floor.major}.{floor.minor}"
        if self._own:
            try:
                lock = resolving.resolve(
                    requirements, stored, python=python, index=index, mirrors=self._mirrors
                )
                sourcelock.save_files(self._layout, self._recipe.id, [stored])
                return lock
            except ToolchainError:
                site = uvtool.has_own_index() or self._mirrors.mapped(resolving.PYPI)
                if self._public or not site:
                    raise
        # This site's indexes may be all that it reaches; their addresses do not belong into recipes/.
        return resolving.resolve(
            requirements, private, python=python, index=index, public=False, mirrors=self._mirrors
        )

    def _verify(self, path: Path) -> None:
        """Refuse a lock with other content than `recipes/<id>.lock` has noted."""
        noted = sourcelock.locked_file(self._layout, self._recipe.id, path)
        if noted is not None and noted != files.sha256(path):
            raise ToolchainError(
                f"{path.name} was edited: recipes/{self._recipe.id}.lock has another hash of it",
                where={"file": self._layout.relative(path)},
                next=f"restore it from git, or make it anew: sglwheel lock --upgrade {self._recipe.id}",
            )


def _own_pins(recipe: Recipe, layout: Layout) -> bool:
    """Whether this is the recipe as its file says."""
    try:
        stored = recipes.load(layout, recipe.id)
    except UsageError:
        return False
    return stored.torch == recipe.torch and stored.build == recipe.build
