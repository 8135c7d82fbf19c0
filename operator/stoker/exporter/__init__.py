"""Per-node GPU telemetry: what NVML says, who holds each GPU, and what every GPU-second and joule was spent on.

Two processes: a child that alone imports pynvml (`stoker.nvml`) and a parent that never does. The parent holds all
counters, so that a driver that hangs or crashes costs readings, never sums. Standard library, prometheus_client, grpcio
(where a kubelet is asked) and, in the child, nvidia-ml-py; of Stoker's only `push` and `nvml`, and no pydantic: both
processes together fit 60 MB.

    watch        the parent's side of the child: spawn, time-outs, restarts
    meters/      frames + allocation → integrals, the ledger of each job and GPU, its file
    allocation/  who holds which GPU: kubelet, the node agent's folders, none
    reporting/   receipts and GPU events to the api, spooled on disk
    serving/     /metrics: rendering, TLS, tokens; push/: remote-write
"""
