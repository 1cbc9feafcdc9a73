"""Tasks in a separate package. Each shows features that the built-in tasks do not use."""
