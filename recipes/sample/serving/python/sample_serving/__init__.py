# SPDX-License-Identifier: Apache-2.0
"""Serving, whose package asks for everything when it is imported."""

import aiohttp

__all__ = ["aiohttp"]
