"""The command line: thin over the client and the app."""
