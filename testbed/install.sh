#!/bin/bash
# Builds the environment of the CPU test bed's workers.   usage: install.sh VENV
# About 1.9 GB and three minutes. Everything it has to say goes to stderr.
set -euo pipefail
exec 1>&2
venv=${1:?usage: install.sh VENV}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3.11}

ensure_libibverbs() { # Mooncake's transfer engine links it, also where it only ever speaks TCP
  ldconfig -p | grep -q 'libibverbs\.so\.1' && return
  local remedy="libibverbs.so.1 is missing: install the Debian package libibverbs1 (apt-get install libibverbs1)"
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "$remedy, then run this again"
    exit 1
  fi
  if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends libibverbs1 >/dev/null; }; then
    echo "$remedy; apt-get could not"
    exit 1
  fi
}

ensure_libibverbs
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
  || { echo "the pinned wheels are for Python 3.11, and $python is another: set SGLANG_PYTHON"; exit 1; }
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/pip" install -q --no-deps -r "$here/requirements.txt"
"$venv/bin/pip" install -q --no-deps "$here/shim"
"$venv/bin/pip" install -q --no-deps --editable "$here/.."
