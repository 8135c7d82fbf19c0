"""`helm test`: the api answers at its Service, and knows this pod's token. Run by templates/tests/api.yaml.

Standard library only. $URL: the api. $TOKEN_FILE: this pod's own token. Gives up after $SECONDS.
"""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path

DEADLINE = time.monotonic() + float(os.environ.get("SECONDS", "60"))


def ask(path, **headers):
    """The answer as JSON or text; tried again for a while, as a Service may need a moment to know its pods."""
    while True:
        try:
            request = urllib.request.Request(os.environ["URL"] + path, headers=headers)
            with urllib.request.urlopen(request, timeout=5) as answer:
                text = answer.read().decode()
                return json.loads(text) if "json" in answer.headers.get_content_type() else text.strip()
        except OSError as error:
            detail = error.read().decode() if hasattr(error, "read") else error
            print(f"{path}: {detail}", file=sys.stderr, flush=True)
            if time.monotonic() > DEADLINE:
                raise SystemExit(1) from None
            time.sleep(1)


print("ready:", ask("/readyz"))
print("version:", ask("/version"))
token = Path(os.environ["TOKEN_FILE"]).read_text().strip()
me = ask("/v1/whoami", Authorization=f"Bearer {token}")
print("whoami:", me)
if not me["name"].startswith("system:serviceaccount:"):
    raise SystemExit(f"the api takes this pod for {me['name']}")
