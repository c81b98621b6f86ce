#!/bin/sh
# Copy the ledger folder to the vestry store every night.
#
# Started by the timer at 02:40. A copy is a tar file named after the day.
# The first copy of a month goes to the folder "monthly" as well. When the
# disk has less than 500 MB left nothing is written and a lamp file is made
# that the desk program shows in red.

set -eu

SOURCE="${1:-ledger}"
TARGET="${2:-/srv/vestry/copies}"
NIGHTLY_KEPT=14
NEED_MB=500
LAMP="$TARGET/RED_LAMP"

mkdir -p "$TARGET/nightly" "$TARGET/monthly"

free_mb=$(df -Pm "$TARGET" | awk 'NR == 2 { print $4 }')
if [ "$free_mb" -lt "$NEED_MB" ]; then
    echo "only $free_mb MB left" > "$LAMP"
    exit 3
fi

day=$(date +%Y-%m-%d)
file="$TARGET/nightly/ledger-$day.tar"
tar -cf "$file" "$SOURCE"

# A copy smaller than 4 kilobytes means that the tables are gone.
size=$(wc -c < "$file")
if [ "$size" -lt 4096 ]; then
    echo "copy of $day is too small" > "$LAMP"
    exit 4
fi

case "$day" in
    *-01) cp "$file" "$TARGET/monthly/" ;;
esac

ls -1t "$TARGET/nightly" | tail -n +$((NIGHTLY_KEPT + 1)) | while read -r old; do
    rm -f "$TARGET/nightly/$old"
done
rm -f "$LAMP"
