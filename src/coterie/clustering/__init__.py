"""k-FED, one-shot federated k-means, as a scikit-learn estimator; it clusters points, not models."""
