"""One module a command. Nothing heavy at the top: a module is imported to show its help."""
