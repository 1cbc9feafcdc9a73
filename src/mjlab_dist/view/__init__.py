"""Watch envs while they run: a player that steps them in real time, and viewers that show its frames."""
