"""Per-node GPU telemetry: what NVML says, who holds each GPU, and what every GPU-second and joule was spent on.

Two processes: a child that alone imports pynvml (`stoker.exporter.nvml`) and a parent that never does. The
parent holds all counters, so that a driver that hangs or crashes costs readings, never sums. Standard library, grpcio
(where a kubelet is asked) and, in the child, nvidia-ml-py; nothing else of Stoker's and no pydantic: both processes
together are to fit 60 MB.

    nvml/        the child: calls, return codes, GPM, MIG, XID events → frames
    watch/       the parent's side of the child: spawn, time-outs, restarts
    meters/      frames + allocation → integrals, the ledger of each job and GPU, its file
    allocation/  who holds which GPU: kubelet, the node agent's folders, nobody
    reporting/   receipts and GPU events to the api, spooled on disk
    serving/     /metrics: rendering, TLS, tokens; push/: remote-write
"""
