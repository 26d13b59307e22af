"""How fast is coterie beside what others run? `coterie bench`.

Every baseline (plain loops, other simulators, and coterie itself) is a fresh process that gets the same folder: the
same data, the same initial models. They run interleaved, round by round, so that a busy machine slows all alike. In the
end each hands in its models, which are scored by the same code.

    workloads.py      what is measured: algorithm, model, data
    models.py         small CNNs that no paper has
    task.py           the folder that baselines are given, and how their models are scored
    registry.py       which baselines there are, and the Python of each
    adapters/         one file per baseline; those of other simulators import nothing of coterie
    processes.py      the process of a baseline; all of them interleaved
    process_tree.py   memory of a baseline with all processes that it started, and their end
    session.py        every workload, into one report
    roofline.py       how fast the device could be at most
    table.py          the report for people
    provenance.py     command, commit, machine and versions of a report
    results.py        what the scripts in benchmarks/ and experiments/ share
    command.py        all of it behind `coterie bench`
"""
