"""The results of races, kept for later runs: files (`store.py`) and their use (`memory.py`)."""
