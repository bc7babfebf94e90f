"""One module a command, each with one function `command`."""
