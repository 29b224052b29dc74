"""The command line: one module per group of commands, each thin: parse, call, print."""
