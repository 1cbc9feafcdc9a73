"""Verify that several ranks train one policy: train briefly, gather evidence on every rank, and check it."""
