"""From a config to ranks: devices, torchrunx, logs, signals."""
