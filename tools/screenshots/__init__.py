"""Pictures of our dashboards without a Grafana: its own panel components in a headless Chromium, a real Prometheus.

    questions  a dashboard's queries with the variables filled in; Prometheus' answers
    drawing    the components bundled once into the cache folder (npm, esbuild), the page, the picture
    sample     hours of a small cluster that never was, for work on dashboards
    app/       the page, in JavaScript

`make screenshots PROMETHEUS=url` writes docs/screenshots. Not in CI: node_modules are 430 MB.
"""
