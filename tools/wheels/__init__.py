"""`make wheels`: the distributions of this repository, as they are uploaded to a package index."""
