"""mjlab_dist: train one robot policy over every GPU or CPU core, of one machine or several."""
