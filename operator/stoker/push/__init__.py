"""Prometheus remote-write 1.0: series of Stoker's processes and of trainers, for places that no Prometheus can scrape.

Owns encoding (`protobuf`, `snappy`), the buffer of what could not be sent yet (`buffer`), one request (`client`) and
the thread that sends in order (`sender.Push`). The exporter offers it its samples; the api and the operator have a
`relay`, which reads text pages (`exposition`), their own and trainers'. A sample is prometheus_client's. `link` posts
over HTTP, to the api as well. Knows none of our other rooms; only `flags` needs click.

Source: Prometheus Remote-Write 1.0 specification (prometheus.io/docs/specs/prw/remote_write_spec).
"""
