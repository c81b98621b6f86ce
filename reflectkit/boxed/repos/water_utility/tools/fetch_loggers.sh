#!/bin/sh
# Fetch the files of the radio loggers and hand them to the reader program.
#
# The loggers listen only in the first ten minutes of each hour. The script
# tries three times with a pause of 100 seconds. Files that were taken over
# go to the folder "done" and are removed after 40 days.

set -eu

SPOOL="${SPOOL:-/var/spool/loggers}"
TRIES=3
PAUSE=100
KEEP_DAYS=40

minute=$(date +%M)
if [ "$minute" -gt 10 ]; then
    echo "loggers are asleep, come back at the full hour" >&2
    exit 1
fi

fetch_one() {
    # $1 is the zone meter, its file ends in .lg
    try=1
    while [ "$try" -le "$TRIES" ]; do
        if radiocat --channel 17 --meter "$1" > "$SPOOL/$1.lg"; then
            return 0
        fi
        try=$((try + 1))
        sleep "$PAUSE"
    done
    echo "$1" >> "$SPOOL/silent.txt"
    return 1
}

for meter in 900101 900102 900103 900104; do
    fetch_one "$meter" || continue
    # strip the header of four lines that the radio puts in front
    tail -n +5 "$SPOOL/$meter.lg" | ./readings >> "$SPOOL/today.txt"
    mv "$SPOOL/$meter.lg" "$SPOOL/done/"
done

find "$SPOOL/done" -name '*.lg' -mtime +"$KEEP_DAYS" -delete
