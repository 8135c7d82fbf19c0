"""What of the chart `helm/stoker` is generated: values, schema, README, dashboards; `python -m tools.chart` does."""
