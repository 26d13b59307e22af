"""The quantities that the papers' theorems are about, measured on a run.

Pure functions over tensors. No metric changes anything in a run. Some need what no aggregator of a real deployment
would know: all rows at once, a client's data, the true clusters. What is per cluster
has nan for a cluster with nobody in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from coterie.engine.storage import blocks, mean, row_blocks

DENSE = 500  # clients up to which all eigenvalues of a graph are computed
RESTARTS = 100  # of Lanczos iterations for the others; a graph so slow to mix is left without the number

Over = Callable[
    [Tensor], Tensor
]  # from a process's part to that of all; see ProcessGroup.sum and ProcessGroup.max
# clients' rows, some at a time, as often as they are asked for
RowBlocks = Callable[[], Iterable[tuple[slice, Tensor]]]


def alone(part: Tensor) -> Tensor:
    return part


# between centers (cluster, parameter)


def center_distances(centers: Tensor) -> tuple[float, float]:
    """δ and Δ, FedSoft eq. (12): the least and the greatest distance between two centers."""
    distance = torch.pdist(centers.double())
    return (float(distance.min()), float(distance.max())) if len(distance) else (float("nan"), float("nan"))


def cosine_between(centers: Tensor) -> float:
    """The mean cosine of two centers (WeCFL section 8.3, inter-cluster)."""
    unit = normalize(centers.double(), dim=1)
    clusters = len(unit)
    pairs = clusters * (clusters - 1)
    return float((unit.sum(0).square().sum() - unit.square().sum()) / pairs) if pairs else float("nan")


# clusters by importance (client, cluster)


def cluster_of(importance: Tensor) -> Tensor:
    """(client,) the cluster of the largest importance, −1 where a client did not say.

    Where every client has as much of one cluster as of any other (FedAvg+), there are none: −1 for all.
    """
    known = ~importance.isnan().any(1)
    says = importance[known]
    if says.shape[1] > 1 and bool((says == says[:, :1]).all()):
        known = torch.zeros_like(known)
    return torch.where(known, importance.nan_to_num().argmax(1), -1)


def cluster_sizes(importance: Tensor) -> list[int]:
    """How many clients each cluster has."""
    cluster = cluster_of(importance)
    return torch.bincount(cluster[cluster >= 0], minlength=importance.shape[1]).tolist()


# clients in clusters: rows (client, parameter), label (client,), weight λ (client,), all or those of this process


def cosine_within(rows: Tensor, label: Tensor, clusters: int, add: Over = alone) -> Tensor:
    """(cluster,) the mean cosine of two clients of a cluster (WeCFL section 8.3, intra-cluster).

    Σ_ij u_i·u_j = ‖Σ_i u_i‖², so no matrix of pairs is needed.
    """
    length = rows.new_empty(len(rows))
    member = one_hot(label, clusters).to(rows.dtype)
    total = rows.new_zeros(clusters, rows.shape[1])  # (cluster, parameter) the sum of unit rows
    for some in blocks(len(rows), rows[:1].nbytes, rows.device):
        length[some] = rows[some].norm(dim=1)
        total += (member[some] / length[some].clamp(min=1e-30)[:, None]).T @ rows[some]
    total, count = add(total), add(member.sum(0).double())
    own = add(member.T.double() @ (length > 0).double())  # each with itself: 1, but 0 for a row of zeros
    pairs = count * (count - 1)
    others: Tensor = total.double().square().sum(1) - own
    return others / torch.where(pairs > 0, pairs, torch.nan)


def clustering_objective(
    rows: Tensor, label: Tensor, weight: Tensor, centers: Tensor, add: Over = alone
) -> Tensor:
    """(cluster,) F of WeCFL, eq. (4), cluster by cluster: Σ λ_i·‖ω_i − Ω_k‖² / Σ λ_i."""
    distance = rows.new_empty(len(rows))
    for some in row_blocks(rows):
        own = centers[label[some]] if len(centers) > 1 else centers
        distance[some] = (rows[some] - own).square_().sum(1)
    return mean_by_cluster(distance, label, weight, len(centers), add)


def mean_by_cluster(
    values: Tensor, label: Tensor, weight: Tensor, clusters: int, add: Over = alone
) -> Tensor:
    """(cluster,) the mean of values (client,) weighted by λ. Of losses it is R of WeCFL, eq. (4)."""
    share = one_hot(label, clusters).double() * weight.double()[:, None]
    return add(share.T @ values.double()) / add(share.sum(0))


def over_clusters(values: Tensor, label: Tensor, weight: Tensor) -> float:
    """Means by cluster (cluster,) to one over all clients: Σ_k Σ_{i∈k} λ_i·value_k / Σ λ_j."""
    weight = weight.double()
    return float((weight * values[label]).sum() / weight.sum())


def clusterability(
    gradients: RowBlocks, label: Tensor, weight: Tensor, clusters: int, add: Over = alone, most: Over = alone
) -> Tensor:
    """(cluster,) B of WeCFL, Definition 6.4: the largest ‖ḡ_k − g_i‖ / ‖ḡ_k‖ of a client of the cluster.

    g_i = ∇l(ω_i, D_i), and ḡ_k is their λ-weighted mean. Norms are not squared: the proof, (28) to (31), uses B so.
    """
    share = one_hot(label, clusters).double() * weight.double()[:, None]
    total = add(share.sum(0))
    share /= torch.where(total > 0, total, 1)
    parts = (share[some].T.to(each.dtype) @ each for some, each in gradients())
    middle = add(reduce(torch.add, parts))
    furthest = middle.new_full((clusters,), -1.0)  # below any distance
    for some, each in gradients():
        distance = (middle[label[some]] - each).norm(dim=1)
        furthest.scatter_reduce_(0, label[some], distance, "amax")
    found = most(furthest.double()) / middle.norm(dim=1).double()
    return torch.where(total > 0, found, torch.nan)


# over a graph


def consensus_distance(centers: Tensor) -> Tensor:
    """(cluster,) E_t of FedSPD, Theorem 5.10: 1/N·Σ_i ‖c_is − c̄_s‖², of centers (client, cluster, parameter)."""
    middle = mean(centers)
    distance = centers.new_empty(centers.shape[:2])
    for some in row_blocks(centers):
        for s in range(centers.shape[1]):
            distance[some, s] = (centers[some, s] - middle[s]).square().sum(1)
    return distance.double().mean(0)


def spectral_gap(edges: Tensor, clients: int) -> float:
    """1 − the second largest |eigenvalue| of FedSPD's mixing matrix, eq. (1), with everyone training one cluster.

    W_ij = 1/|N[i]| for all j that i receives from, itself included: the W of Assumption 5.7, whose p is
    1 − (1 − gap)² where all have as many neighbours. `edges` (2, edge) are (aggregator, sender), both ways, and of
    everyone with itself. W is similar to the symmetric D^-½·A·D^-½, whose first eigenvector is D^½·1; that is taken
    out.
    """
    if clients == 1:
        return 1.0
    from scipy.sparse import coo_array, diags_array  # here, since importing it takes a while
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    aggregator, sender = edges.cpu().numpy()
    adjacency = coo_array((np.ones(len(aggregator)), (aggregator, sender)), shape=(clients, clients)).tocsr()
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    scale = diags_array(1 / np.sqrt(degree))
    even = (scale @ adjacency @ scale).tocsr()
    first = np.sqrt(degree / degree.sum())
    if clients <= DENSE:
        second = np.abs(np.linalg.eigvalsh(even.toarray() - np.outer(first, first))).max()
        return float(1 - second)

    def rest(x: np.ndarray) -> np.ndarray:
        x = x.ravel()
        return np.asarray(even @ x - first * (first @ x))

    start = np.random.default_rng(0).standard_normal(clients)  # fixed: the same graph has the same number
    try:
        values = eigsh(
            LinearOperator((clients, clients), matvec=rest, dtype=np.float64),
            k=1,
            which="LM",
            v0=start,
            tol=1e-6,
            maxiter=RESTARTS,
            return_eigenvectors=False,
        )
    except ArpackError:
        return float("nan")
    return float(1 - abs(values[0]))


# against what is known


def ari(importance: Tensor, mixture: Tensor) -> float:
    """The adjusted Rand index of each client's largest importance and its largest true share."""
    from sklearn.metrics import adjusted_rand_score  # here, since importing it takes a second

    found, true = importance.argmax(1).cpu().numpy(), mixture.argmax(1).cpu().numpy()
    return float(adjusted_rand_score(true, found))


def spread(values: Tensor, low_is_bad: bool = True) -> tuple[float, float]:
    """How unequal clients fare: the standard deviation of their scores, and the mean of the worst tenth of them."""
    values = values[~values.isnan()].double()
    if not len(values):
        return float("nan"), float("nan")
    worst = values.sort(descending=not low_is_bad).values[: -(-len(values) // 10)]
    return float(values.std(correction=0)), float(worst.mean())
