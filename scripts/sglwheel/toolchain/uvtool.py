"""uv, which comes with the tool, and the environment that it is started in."""

from __future__ import annotations

import os
import re

from sglwheel.errors import ToolchainError

# What of the user's uv configuration says *where* packages come from or how they are carried. The rest says
# which packages to take, and that is the lock's to say.
_KEPT = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|INDEX_STRATEGY|INDEX_\w+_(USERNAME|PASSWORD)|KEYRING_PROVIDER"
    r"|INSECURE_HOST|CACHE_DIR|LINK_MODE|NATIVE_TLS|SYSTEM_CERTS|HTTP_TIMEOUT|HTTP_RETRIES|OFFLINE"
    r"|FIND_LINKS|NO_INDEX"
    r"|CONCURRENT_\w+|CONFIG_FILE|NO_CONFIG)"
)
_DROPPED = re.compile(r"(UV|PIP|PYTHON|CONDA|VIRTUAL_ENV)(_\w+)?|PYTHON\w*|__PYVENV_LAUNCHER__")


def uv_binary() -> str:
    """uv, which comes with the tool. Raises ToolchainError where somebody left it out."""
    try:
        import uv

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        raise ToolchainError(
            "uv is not installed", next="pip install uv, or build with --torch-from an environment"
        ) from None


def environment() -> dict[str, str]:
    """The caller's environment without what could change *which* packages uv takes."""
    kept = {
        key: value for key, value in os.environ.items() if _KEPT.fullmatch(key) or not _DROPPED.fullmatch(key)
    }
    return {"UV_HTTP_TIMEOUT": "120", "UV_NO_PROGRESS": "1", **kept}


def has_own_index() -> bool:
    """Whether the user has told uv of indexes of their own."""
    return any(
        ("INDEX" in key and key != "UV_NO_INDEX") or key == "UV_CONFIG_FILE"
        for key in environment()
        if key.startswith("UV_")
    )


def remedy(said: str, otherwise: str) -> str:
    """What to do about uv's complaint: it names neither the variable of certificates nor the proxy's."""
    if re.search("certificate|UnknownIssuer", said):
        return "SSL_CERT_FILE names a file with your own CA (UV_SYSTEM_CERTS=1 takes this host's)"
    if re.search("proxy|407", said, re.IGNORECASE):
        return "the proxy wants a name and a password: HTTPS_PROXY=http://<name>:<password>@<proxy>"
    return otherwise
