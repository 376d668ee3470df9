"""The same training by PyTorch's DistributedDataParallel and by Medley, timed in the same way."""
