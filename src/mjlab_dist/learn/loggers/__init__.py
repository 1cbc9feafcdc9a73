"""The loggers of a run. Only rank 0 creates them."""
