"""The command line: parse, call, return a Result. Decides nothing."""
