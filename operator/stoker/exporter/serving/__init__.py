"""What the exporter shows: a snapshot → metric families → a page → HTTP. Never reads a GPU, never waits for one.

families.py        snapshot → prometheus_client's metric families, by the catalogue
page.py            the newest poll's page in the form that is asked for, made once; whether the poll loop lives
server.py          HTTP and TLS
tls_and_tokens.py  bearer tokens and the TLS certificate, followed when their files change
"""
