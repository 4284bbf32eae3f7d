"""Workloads: seeds and texts in, requests with intended send times out."""
