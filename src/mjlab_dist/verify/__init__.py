"""Whether several ranks learn as one: a short training, watched on every rank, and checks on what they observed."""
