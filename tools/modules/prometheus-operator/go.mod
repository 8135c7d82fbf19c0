module stoker.dev/tools/prometheus-operator

go 1.26.8

// Not built: its definitions (example/prometheus-operator-crd) are what the chart's monitors are checked against.
require github.com/prometheus-operator/prometheus-operator v0.85.0
