"""A program for nodes: do a wheel's kernels compute what they should on this GPU? Also `gpu-check.pyz`.

It runs in the environment that the wheel is installed in, and imports nothing but torch, the wheel's package
and itself.
"""
