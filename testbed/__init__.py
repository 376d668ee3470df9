"""A cluster of unequal machines on one machine, in real time: namespaces, shaped links, CPU quotas.

    .venv/bin/python -m testbed cluster.yaml -- COMMAND ...

docs/howto/run_the_testbed.md says what it needs and what it can and cannot show.
"""
