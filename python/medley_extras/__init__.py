"""Packages above the public API of Medley, which runs without them.

They import what docs/api.md documents and nothing else of Medley; Medley imports none of them
(scripts/check_python.py). `table.py` has the verbs that they add to the command line.
"""
