"""Who carries messages between a coordinator and its clients.

simulation   all clients on this machine, computed together
sharded      the same, divided among the processes that torchrun starts
loopback     every client by itself, and all that passes between them is bytes: for tests
"""
