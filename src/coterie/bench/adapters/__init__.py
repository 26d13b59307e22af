"""One file per baseline, run as `python -m adapters.NAME FOLDER [VARIANT]` by a Python that may have no coterie."""
