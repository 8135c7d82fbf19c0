"""A user's own script, knowing nothing of Stoker but three variables: counts, saves now and then, goes on where it was.

Started as it is (`python3 -c`) in an image without torch. Prints every step, so that what an interruption cost can be
read from its log: the last step printed before, less the first step after, is what was done twice.
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
    if stop or step % SAVE_EVERY == 0 or step == STEPS:
        with open(PATH + ".tmp", "w") as file:
            json.dump({"step": step}, file)
        os.replace(PATH + ".tmp", PATH)
    if stop and step < STEPS:
        sys.exit(75)
print("done", flush=True)
