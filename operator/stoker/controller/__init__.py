"""The operator: reconcile loops that carry out what `stoker.sched` decides. It decides nothing by itself."""
