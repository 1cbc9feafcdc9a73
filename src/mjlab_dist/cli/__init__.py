"""The command line: argv to config, and what a person sees. The only importer of tyro; imports no torch and no warp."""
