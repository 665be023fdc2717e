"""The command line: thin, imports a service when its subcommand runs."""
