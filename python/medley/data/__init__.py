"""The data of a run: folders of text and images, batches of plans."""
