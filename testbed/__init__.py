"""A cluster of heterogeneous machines emulated on one machine in real time: namespaces, shaped
links, CPU quotas.

    .venv/bin/python -m testbed cluster.yaml -- COMMAND ...

docs/howto/run_the_testbed.md lists its requirements and limits.
"""
