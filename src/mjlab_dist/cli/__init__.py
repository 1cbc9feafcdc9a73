"""The command line: flags, help, output. Only this package imports tyro. It imports no torch or warp."""
