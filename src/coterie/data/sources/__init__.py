"""Data sets before they are partitioned among clients.

catalogue.py has those known by name and where they may lie; one file reads each layout (idx.py, cifar.py, npz.py,
leaf.py, ...); fetch.py and packages.py get them; hugging_face.py takes those of `datasets`. Public, through
`coterie.data`: `Source`, `load`, `data_folder`, `from_datasets`.
"""
