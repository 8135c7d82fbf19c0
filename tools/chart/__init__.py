"""What of the chart `helm/stoker` is generated: values, their schema, the README, dashboards. `python -m chart` writes it."""
