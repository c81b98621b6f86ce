#!/bin/sh
# Copy the log files of a memory card into the archive and set the card free for the next visit.
# Usage: fetch_cards.sh STATION [mount point]      e.g. fetch_cards.sh CT /media/card
set -eu

STATION="$1"
MOUNT="${2:-/media/card}"
ARCHIVE=/data/hollin/raw
MIN_FILES=3

case "$STATION" in
    [A-Z][A-Z]) ;;
    *) echo "station code is two capital letters" >&2; exit 2 ;;
esac

# A card with fewer than three day files was probably not closed properly on the mast.
count=$(find "$MOUNT" -name 'D*.HWL' | wc -l)
if [ "$count" -lt "$MIN_FILES" ]; then
    echo "only $count day files, press SAVE on the station and try again" >&2
    exit 3
fi

target="$ARCHIVE/$STATION/$(date +%Y-%m-%d)"
mkdir -p "$target"

# Copy twice and compare; bad cards give different bytes on the second reading.
for file in "$MOUNT"/D*.HWL; do
    cp "$file" "$target/"
    if ! cmp -s "$file" "$target/$(basename "$file")"; then
        echo "$file reads differently the second time: throw the card away" >&2
        exit 6
    fi
done

chmod a-w "$target"/*.HWL
# The station recognises an emptied card by this file and blinks green five times.
rm -f "$MOUNT"/D*.HWL
echo "fetched $count" > "$MOUNT/EMPTIED.TXT"
sync
