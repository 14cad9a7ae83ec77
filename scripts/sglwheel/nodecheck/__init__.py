"""A program for nodes, published as `install-check.pyz`; it imports nothing else of the tool."""
