"""A user's own script, knowing nothing of Stoker but its variables: counts, saves now and then, goes on where it was.

Started as it is (`python3 -c`) in an image without torch. Prints every step, so that what an interruption cost can be
read from its log: the last step printed before, less the first step after, is what was done twice. Of several workers
the first saves. With REPORTS it says what it saves now and then.
"""

import json
import os
import signal
import sys
import time

STEPS = int(os.environ.get("STEPS", "100"))
STEP_S = float(os.environ.get("STEP_S", "0.1"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "20"))
PATH = os.path.join(os.environ["STOKER_CHECKPOINT_DIR"], "state.json")
FIRST = os.environ.get("STOKER_WORKER", "0") == "0"


def write(path, content):
    with open(path + ".tmp", "w") as file:
        json.dump(content, file)
    os.replace(path + ".tmp", path)


stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))

step = 0
if os.path.exists(PATH):
    with open(PATH) as file:
        step = json.load(file)["step"]
print(f"attempt {os.environ['STOKER_ATTEMPT']} begins after step {step}", flush=True)
while step < STEPS:
    time.sleep(STEP_S)
    step += 1
    print(f"step {step}", flush=True)
    if FIRST and (stop or step % SAVE_EVERY == 0 or step == STEPS):
        write(PATH, {"step": step})
        if os.environ.get("REPORTS") and not stop:
            saved = {"at": time.time(), "step": step, "checkpoint": {"step": step, "path": PATH}}
            write(os.environ["STOKER_PROGRESS_FILE"], saved)
    if stop and step < STEPS:
        sys.exit(75)
print("done", flush=True)
