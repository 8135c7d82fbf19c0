"""Push mode: the exporter's samples to a Prometheus remote-write 1.0 receiver, for nodes that nobody can scrape.

Owns encoding (`protobuf`, `snappy`), the buffer of what could not be sent yet (`buffer`), one request (`client`) and
the thread that sends in order (`sender.Push`). Never reads a GPU. Called by the exporter's main.

Source: Prometheus Remote-Write 1.0 specification (prometheus.io/docs/specs/prw/remote_write_spec).
"""
