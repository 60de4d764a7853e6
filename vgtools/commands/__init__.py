"""One module a subcommand: flags, open, call, write."""
