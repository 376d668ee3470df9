"""Packages above the public API of Medley, which runs without them.

They import only names documented in docs/api.md, and Medley imports none of them
(scripts/check_python.py). `table.py` has the verbs that they add to the command line.
"""
