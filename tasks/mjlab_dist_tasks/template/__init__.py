"""The task template."""
