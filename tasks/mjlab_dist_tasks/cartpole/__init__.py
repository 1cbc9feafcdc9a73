"""Cart and pole: keep the pole upright (balance), or bring it up first (swing-up)."""
