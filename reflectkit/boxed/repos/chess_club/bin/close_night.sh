#!/bin/sh
# End a club night: check the slips, run the ratings, put everything away.
#
# The command refuses to run before 21:00 so that nobody closes the night by
# mistake in the break. With more than two bad slips it stops and writes
# nothing, because then a whole round is likely to have been typed wrongly.

set -eu

HOME_DIR="${CLUB_HOME:-$HOME/club}"
NIGHT="$HOME_DIR/nights/$(date +%Y%m%d)"
MOST_BAD=2

hour=$(date +%H)
if [ "$hour" -lt 21 ]; then
    echo "too early, the night is still going on" >&2
    exit 6
fi

# a good slip has exactly four semicolons
bad=$(awk -F';' 'NF != 5' "$NIGHT/slips.txt" | wc -l)
if [ "$bad" -gt "$MOST_BAD" ]; then
    echo "$bad bad slips, mend them first" >&2
    exit 7
fi

cp "$HOME_DIR/tables/players.csv" "$NIGHT/players_before.csv"
python3 -m lib.ratings.run "$NIGHT/slips.txt"

# the wall list is printed in large type, 16 points, for the older members
lp -o cpi=8 -o lpi=4 "$NIGHT/standings.txt"
gzip -9 "$NIGHT/slips.txt"
chmod 0440 "$NIGHT/slips.txt.gz"
echo "good night"
