"""Complete programs to read, run and copy from."""
