"""Gymnasium's MuJoCo v5 tasks, whose results are published, on MuJoCo Warp."""
