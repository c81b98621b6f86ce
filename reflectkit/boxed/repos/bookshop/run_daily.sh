#!/bin/sh
# Daily chores of the shop computer. Called by cron at 05:40, before anybody is in the shop.
# Usage: run_daily.sh [folder with the ledger]   (default: /srv/gilt/ledger)
set -eu

LEDGER="${1:-/srv/gilt/ledger}"
GREY=/mnt/grey/bookshop
KEEP=21                       # that many daily archives stay on the grey disk

if [ ! -d "$LEDGER" ]; then
    echo "no ledger at $LEDGER" >&2
    exit 4
fi

# Step 1: refuse to work on a disk that is nearly full (less than 900 MB free).
free_kb=$(df -Pk "$LEDGER" | awk 'NR == 2 {print $4}')
if [ "$free_kb" -lt 921600 ]; then
    echo "disk nearly full, nothing done" >&2
    exit 5
fi

# Step 2: pack the ledger under the date of today.
name="ledger-$(date +%Y%m%d).tar.gz"
tar -czf "$GREY/$name" -C "$LEDGER" .

# Step 3: drop the oldest archives.
ls -1 "$GREY" | grep '^ledger-' | sort -r | tail -n +"$((KEEP + 1))" |
while read -r old; do
    rm -f "$GREY/$old"
done

# Step 4: give back copies whose reservation has run out, then write the report on Mondays.
: > "$LEDGER/release.flag"      # the service sees the flag within a minute and removes it
[ "$(date +%u)" = 1 ] && python3 -m app.reports.weekly --print
exit 0
