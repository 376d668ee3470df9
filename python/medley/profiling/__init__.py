"""Measurement of devices, links and ops on the available hardware."""
