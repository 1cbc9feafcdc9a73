"""Verify that several ranks learn as one: train briefly, gather evidence on every rank, and check it."""
