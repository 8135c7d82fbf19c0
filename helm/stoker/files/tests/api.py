"""`helm test`: the api answers at its Service, and knows this pod's token. Run by templates/tests/api.yaml."""

import json
import os
import sys
import time
import urllib.request

DEADLINE = time.monotonic() + 60
TOKEN = open("/token/token").read()


def ask(path, **headers):
    """The answer as JSON or text; tried again for a minute, as a Service may need a moment to know its pods."""
    while True:
        try:
            request = urllib.request.Request(os.environ["URL"] + path, headers=headers)
            with urllib.request.urlopen(request, timeout=5) as answer:
                text = answer.read().decode()
                return json.loads(text) if "json" in answer.headers.get_content_type() else text
        except OSError as error:
            said = error.read().decode() if hasattr(error, "read") else error
            print(f"{path}: {said}", file=sys.stderr, flush=True)
            if time.monotonic() > DEADLINE:
                raise SystemExit(1)
            time.sleep(1)


print("ready:", ask("/readyz"))
print("version:", ask("/version"))
me = ask("/v1/whoami", Authorization=f"Bearer {TOKEN}")
print("whoami:", me)
assert me["name"].startswith("system:serviceaccount:"), me
