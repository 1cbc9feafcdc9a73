"""The command line: flags, help, completion, output. Only this package imports tyro. It imports no torch or warp."""
