"""What of the chart `helm/stoker` is generated: values, schema, README, dashboards. `python -m chart` writes it."""
