#!/bin/sh
# Nightly job: save the orders, print the plan, warn when something is missing.
# Runs from the planner's machine at ten past one.

set -eu

BASE=${BAKERY_BASE:-/srv/bakery}
KEEP_DAYS=75
MIN_FREE_MB=900
PRINTER=office-laser

day=$(date +%Y-%m-%d)
copy="$BASE/saved/orders-$day.tar.gz"

# Do nothing when the disk is nearly full; a half-written copy is worse than none.
free=$(df -Pm "$BASE" | awk 'NR == 2 { print $4 }')
if [ "$free" -lt "$MIN_FREE_MB" ]; then
    echo "only $free MB free, no copy made" >&2
    exit 11
fi

tar -czf "$copy" -C "$BASE" inbox tables
# Old copies go, but those of the first of a month stay for the bookkeeper.
find "$BASE/saved" -name 'orders-*.tar.gz' ! -name 'orders-*-01.tar.gz' \
    -mtime +"$KEEP_DAYS" -exec rm -f {} +

# Two copies: one for the board, one for the van driver.
if python3 "$BASE/run_day.py" "$day" > "$BASE/out/plan-$day.txt"; then
    lp -d "$PRINTER" -n 2 "$BASE/out/plan-$day.txt"
else
    code=$?
    echo "plan failed with code $code" >> "$BASE/out/night.log"
    # Three beeps wake whoever is in the office.
    printf '\a\a\a'
    exit "$code"
fi
