"""Options that several verbs share."""

from __future__ import annotations

import click

as_json = click.option("--json", "as_json", is_flag=True, help="the same facts for scripts, on stdout")
torch_option = click.option("--torch", metavar="VERSION", help="another torch; recipes/ is not changed")
override_option = click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="NAME=PATH|REV|PATH@REV",
    help="take one fetched source from elsewhere; the release is marked",
)
