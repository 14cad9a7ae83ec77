# SPDX-License-Identifier: Apache-2.0
"""Largest message, in bytes, by compute capability and number of GPUs."""

MIB = 1024 * 1024

LARGEST = {
    9: {2: 64 * MIB, 4: 64 * MIB},
    10: {2: 64 * MIB, 4: 64 * MIB},
}
