"""One process for each device: how they are started, find each other, and end."""
