"""The command line: flags, help, completion and output. The only importer of tyro; imports neither torch nor warp."""
