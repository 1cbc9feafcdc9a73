"""Watch envs while they run: a player steps them in real time, and viewers show the results of the steps (frames)."""
