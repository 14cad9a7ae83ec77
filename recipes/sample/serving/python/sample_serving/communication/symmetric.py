# SPDX-License-Identifier: Apache-2.0
"""Reduce in memory that every GPU sees."""

from sample_serving.communication.limits import LARGEST

MULTICAST = {
    9: [4],
    10: [4],
}


def largest(capability: int, gpus: int) -> int:
    """Bytes of the largest message."""
    return LARGEST[capability][gpus]


def multicast(capability: int, gpus: int) -> bool:
    """Whether the switch adds up."""
    return gpus in MULTICAST[capability]
