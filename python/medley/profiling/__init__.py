"""Measuring devices, links and ops on the hardware at hand."""
