"""A 12-joint quadruped of 12.8 kg that follows velocity commands."""
