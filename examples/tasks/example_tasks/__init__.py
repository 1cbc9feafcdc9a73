"""Tasks of an outside package: each shows what shipped tasks do not."""
