#!/bin/sh
# Installs the system packages that the checkout needs and a bare Debian lacks; does nothing when all are there.
set -eu
PYTHON=${PYTHON:-python3}
missing=

# need PACKAGE COMMAND…: the package is there when the command succeeds.
need() {
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

need python3 "$PYTHON" --version
need python3-venv "$PYTHON" -c 'import ensurepip, venv'
if [ "${1:-}" = dev ]; then # what the tests drive for real
    need bubblewrap bwrap --version
    need npm npm --version
fi

[ -n "$missing" ] || exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086  # one word per package
    apt-get install -qq --yes --no-install-recommends $missing
else
    echo "missing system packages:$missing (as root: apt-get install$missing)" >&2
    exit 1
fi
