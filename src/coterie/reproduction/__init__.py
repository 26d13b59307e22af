"""The tables and figures of four papers, run beside the published values."""
