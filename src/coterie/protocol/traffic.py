"""How many messages and payload bytes crossed the network; headers are left out."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

from coterie.protocol.message import Messages


@dataclass
class Traffic:
    """Messages and payload bytes so far. A server's are counted both ways; a graph's in two ways of sending.

    Only what arrives is counted: not what a straggler or a diverged client sent in vain.
    """

    messages: int = 0
    down: int = 0  # from a server to its clients
    up: int = 0  # from clients to a server
    multicast: int = 0  # between peers, each message counted once however many receive it
    point_to_point: int = 0  # between peers, each message counted once per neighbour that needs it

    def to_clients(self, offer: Messages | None, already: Messages | None = None) -> None:
        """What clients have been sent `already` in this round is not counted again."""
        offer = None if offer is None else offer.beyond(already)
        if offer is not None and offer.fields:
            self.down += len(offer) * offer.message_bytes
            self.messages += len(offer)

    def to_server(self, sent: Messages | None) -> None:
        if sent is not None and sent.fields:
            self.up += len(sent) * sent.message_bytes
            self.messages += len(sent)

    def between(self, sent: Messages, neighbours: Tensor, needed: Tensor) -> None:
        """Peers send to neighbours: (message,) how many there are, and how many need all of the message."""
        if not sent.fields:
            return
        small = sum(t[:1].numel() * t.element_size() for t in sent.fields.values() if t.dim() == 1)
        received = int((neighbours > 0).sum())
        self.messages += received
        self.multicast += received * sent.message_bytes
        self.point_to_point += (
            int(needed.sum()) * (sent.message_bytes - small) + int(neighbours.sum()) * small
        )

    def total(self) -> int:
        return self.down + self.up + self.point_to_point

    def named(self) -> dict[str, int]:
        return {f.name: int(getattr(self, f.name)) for f in fields(self)}
