#!/usr/bin/env bash
# Chromium for the tests of the web page: Debian's, where there is none yet and it can be had (root, apt-get), in four minutes
# at most. Where not, those tests are skipped and the end of the run says so.
set -uo pipefail
for name in "${STOKER_CHROMIUM:-}" chromium chromium-browser google-chrome; do
  [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 && exit 0
done
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || { echo "no chromium here: the web page will not be tested"; exit 0; }
echo "installing chromium (once) …"
export DEBIAN_FRONTEND=noninteractive
install() { timeout 240 apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1; }
install || { timeout 60 apt-get update -qq >/dev/null 2>&1; install; } || echo "chromium can't be installed: the web page will not be tested"
