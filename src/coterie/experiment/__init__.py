"""From an experiment's TOML to checked settings to objects; and numbers of clusters that are "auto"."""
