"""A real run of `stoker up` under the fake NVML, and what it proves about telemetry.

    course    step functions of time with integrals and bounds: the truth, exactly
    story     who submits what when, and what the GPUs do meanwhile: plain data
    drive     follows the workers and writes the scenario; notes who held which GPU when
    watch     the run's own records: jobs as REST tells them, pages of /metrics read beside Prometheus
    run       server, Prometheus, driver and watch together
    truth     the run's figures, computed from scenario and records alone: never from Prometheus
    panels…   panel → what it has to show
    compare   panel by panel: shown, computed, ok

Called by `tools/verify/dashboards.py` and `tests/e2e/test_dashboards.py`. Never used by the product.
"""
