"""One module per command, light to import because help must appear at once."""
