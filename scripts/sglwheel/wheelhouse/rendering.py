"""The tool's templates: everything is escaped but our own style and script."""

from __future__ import annotations

import functools
from typing import Any
from urllib.parse import quote

import jinja2
import markupsafe

from sglwheel import console

# None of them is part of what escaping writes.
_JOINTS = str.maketrans({joint: f"{joint}<wbr>" for joint in "+_."})


def listing() -> list[str]:
    """Names of all templates."""
    return _environment().list_templates()


def template(name: str) -> jinja2.Template:
    """One template, for whoever renders it often."""
    return _environment().get_template(name)


def render(file: str, /, **values: Any) -> str:
    """Render one of the tool's templates; everything is escaped."""
    return template(file).render(**values)


def _label(id: str) -> str:
    """`sgl_kernel-0.3.21_cu130….1-cp310-…` as people read it: name, version, machine."""
    name, version, *_, platform = id.split("-")
    machine = next((item for item in ("x86_64", "aarch64") if platform.endswith(item)), platform)
    return f"{name.replace('_', '-')} {version.replace('_', '+')} ({machine})"


def _breakable(text: str) -> markupsafe.Markup:
    """Lets a long version be broken where its parts meet, and not within a word."""
    escaped = str(markupsafe.escape(text))
    return markupsafe.Markup(escaped[:-1].translate(_JOINTS) + escaped[-1:])


def _asset(environment: jinja2.Environment, name: str) -> markupsafe.Markup:
    assert environment.loader is not None
    return markupsafe.Markup(environment.loader.get_source(environment, name)[0])


def render_text(file: str, /, **values: Any) -> str:
    """Render a template that is no HTML; who fills it quotes for its language."""
    return _environment().overlay(autoescape=False).get_template(file).render(**values) + "\n"


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sglwheel", "templates"),
        autoescape=True,
        # They do not change while we run; to look each time costs a tenth of an index of many releases.
        auto_reload=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["url"] = quote
    # Ours, so it is not escaped; read once, not for each page.
    environment.globals["style"] = _asset(environment, "style.css")
    environment.globals["script"] = _asset(environment, "script.js")
    environment.filters["label"] = _label
    environment.filters["breakable"] = _breakable
    environment.filters["bytes"] = console.format_bytes
    return environment
