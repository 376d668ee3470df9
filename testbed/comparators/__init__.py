"""The same training by PyTorch's DistributedDataParallel and by Medley, timed alike."""
