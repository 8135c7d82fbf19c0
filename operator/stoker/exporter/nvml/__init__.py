"""The NVML child: reads every GPU once a second and says it on stdout in lines of `frames`.

A process of its own (`python -m stoker.exporter.nvml`), for a call into a wedged driver never returns and NVML has
crashed on lost GPUs. Alone imports pynvml. Keeps no sums: what it knows may die with it. Never says 0 for unknown.
`watch/` spawns it.

    __main__    options, the steady schedule, the end with the parent
    poller      one poll: session, GPUs, what is lost, when to begin anew
    device      one GPU's reading, of: load, board, fields, processes, gpm, mig
    calls       what becomes of NVML's return codes
    xids        events in a thread of their own
"""
