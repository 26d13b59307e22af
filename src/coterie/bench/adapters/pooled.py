"""scikit-learn's k-means on the points of all devices together, which k-FED does without."""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans

from .pipe import Talk

if __name__ == "__main__":
    talk = Talk()
    x, job = np.concatenate(np.array(talk.job.array("x"))), talk.job
    labels = np.zeros(len(x), int)

    def fit() -> None:
        model = KMeans(job["clusters"], n_init=job["settings"]["starts"], random_state=job["seed"])
        labels[:] = model.fit(x).labels_

    talk.versions("scikit-learn", "numpy")
    talk.play(fit, lambda: [{"labels": labels}])
