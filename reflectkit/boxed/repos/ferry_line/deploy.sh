#!/bin/sh
# Build the service and bring it to the computer in the harbour office.
# Usage: deploy.sh [host]        (default: quayhouse). Never on a Friday, never in regatta week.
set -eu

HOST="${1:-quayhouse}"
MODULE=example.org/varnsound/ferry
KEEP=4

if [ "$(date +%u)" = 5 ]; then
    echo "not on a Friday" >&2
    exit 7
fi

# The sheets must be in order before anything is built.
python3 scripts/check_sheets.py sheets

[ -f go.mod ] || go mod init "$MODULE"
gofmt -l . | grep . && { echo "run gofmt first" >&2; exit 8; }
go vet ./...
go build -trimpath -o build/ferryd ./cmd

# The running program is replaced between 01:10 and 04:30 only, when no boat is out.
now=$(date +%H%M)
if [ "$now" -lt 0110 ] || [ "$now" -gt 0430 ]; then
    echo "built, but not installed: come back after ten past one" >&2
    exit 9
fi

stamp=$(date +%y%m%d%H%M)
scp build/ferryd "$HOST:/opt/ferry/ferryd-$stamp"
scp -r sheets options "$HOST:/opt/ferry/"
ssh "$HOST" "ln -sfn /opt/ferry/ferryd-$stamp /opt/ferry/ferryd && systemctl restart ferryd"

# The last four programs stay on the host for going back in a hurry.
ssh "$HOST" "ls -1 /opt/ferry/ferryd-* | sort -r | tail -n +$((KEEP + 1)) | xargs -r rm -f"
