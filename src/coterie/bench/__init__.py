"""How fast is coterie beside what others run? `coterie bench`.

Every player (coterie, plain loops, other simulators) is a fresh process that gets the same folder: the same data, the
same model at the same start. They take turns, a round each, so that a busy machine is busy for all; in the end each
hands in its model, and the same lines score all of them.

    workloads.py   what is played: algorithm, model, data
    job.py         the folder that players are given, and what their models are worth
    entrants.py    who plays, and with which Python
    turns.py       a player's process; all of them, a round each
    match.py       every workload, into one report
    floor.py       how fast the machine could be at most
    table.py       the report for people
    players/       one file each; those of other simulators import nothing of coterie
"""
