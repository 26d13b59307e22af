"""The paper of k-FED, for all who build on it; scikit-learn is not needed to cite it."""

BIBTEX = """@inproceedings{dennis2021heterogeneity,
  title={Heterogeneity for the Win: One-Shot Federated Clustering},
  author={Dennis, Don Kurian and Li, Tian and Smith, Virginia},
  booktitle={ICML},
  year={2021}
}"""
