"""Reports to the api: receipts of jobs' GPU time, GPU events, how the GPUs are. Failing to report never stops a meter.

Receipts are cumulative and events have ids, so every post may be repeated. What the api has not taken lies in a spool
on disk and survives restarts. One thread, its own connection.

    outbox.py    what waits to be sent, bounded; spool.py keeps it on disk
    delivery.py  one batch: what the api's answer means for each item
    gpus_post.py how the GPUs are: the newest only
    reporter.py  when: the thread, pauses, stop
"""
