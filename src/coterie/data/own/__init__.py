"""The user's own data: arrays in memory, a folder with one file per client, or one table.

load.py has the functions, arrays.py and tables.py read inputs, targets.py distinguishes labels from numbers. Public,
through `coterie.data`: `from_arrays`, `from_folder`, `from_table`.
"""
