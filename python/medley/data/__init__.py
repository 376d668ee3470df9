"""What a run is fed: folders of text and images, batches of plans."""
