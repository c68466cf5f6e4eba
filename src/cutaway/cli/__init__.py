"""The command line: parse, call, print. Each command's file is imported when it runs."""
