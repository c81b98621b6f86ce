#!/bin/sh
# Begin a club night: make the folder of the evening and print the pairings.
#
# usage: start_night.sh [standard|blitz|cup]
# The folder is named after the date. If it exists the night was started
# already, and the command stops with code 2 unless FORCE=1 is set.

set -eu

KIND="${1:-standard}"
HOME_DIR="${CLUB_HOME:-$HOME/club}"
NIGHT="$HOME_DIR/nights/$(date +%Y%m%d)"
LEAST_PLAYERS=4

case "$KIND" in
    standard) copies=2 ;;
    blitz)    copies=1 ;;
    cup)      copies=3 ;;
    *) echo "unknown kind: $KIND" >&2; exit 1 ;;
esac

if [ -d "$NIGHT" ] && [ "${FORCE:-0}" != "1" ]; then
    echo "this night was started already" >&2
    exit 2
fi
mkdir -p "$NIGHT"

# present.txt is written at the door, one player id on a line
sort -u "$HOME_DIR/door/present.txt" > "$NIGHT/present.txt"
count=$(wc -l < "$NIGHT/present.txt")
if [ "$count" -lt "$LEAST_PLAYERS" ]; then
    echo "only $count players, play friendly games" >&2
    exit 5
fi

python3 -m lib.pairing.swiss "$NIGHT/present.txt" > "$NIGHT/round1.txt"
lp -n "$copies" -o landscape "$NIGHT/round1.txt"
echo "round 1 printed for $count players, $copies copies"
