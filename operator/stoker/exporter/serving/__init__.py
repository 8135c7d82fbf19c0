"""What the exporter shows: a snapshot → samples → Prometheus text → HTTP. Never reads a GPU, never waits for one.

series.py    snapshot → samples, by the catalogue
text.py      samples → text 0.0.4
page.py      the newest text, plain and gzip, made once a poll at most; whether the poll loop lives
server.py    HTTP and TLS; door.py: tokens and certificates, followed when their files change
"""
