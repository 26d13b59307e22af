"""A source partitioned among clients, as heterogeneously as asked.

settings.py says what may be asked (`Partition`), distributions.py and transforms.py make the distributions,
by_mixture.py, by_class.py and by_owner.py say which client has how much of what, and build.py (`partition`) gives every
client its points. Public, through `coterie.data`: `Partition`, `partition`.
"""
