"""Records of export and import, and their rules. Pure."""
