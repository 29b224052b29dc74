"""The command line: one verb per module, each thin: parse, call, print."""
