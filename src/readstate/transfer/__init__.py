"""Records of export and import, and the rules for them. Pure."""
