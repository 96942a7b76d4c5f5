"""Where the harness meets other tools."""
