"""scikit-learn's k-means on the points of all devices together, which k-FED does without."""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans

from .pipe import Pipe

if __name__ == "__main__":
    pipe = Pipe()
    x, task = np.concatenate(np.array(pipe.task.array("x"))), pipe.task
    labels = np.zeros(len(x), int)

    def fit() -> None:
        model = KMeans(task["clusters"], n_init=task["settings"]["n_init"], random_state=task["seed"])
        labels[:] = model.fit(x).labels_

    pipe.versions("scikit-learn", "numpy")
    pipe.serve(fit, lambda: [{"labels": labels}])
