#!/bin/sh
# Work of the night: check tomorrow's file, print the emergency sheet, make the backup.
# Started at 02:35 from Monday to Friday. Usage: nightly.sh [days folder]
set -eu

DAYS="${1:-/var/larkenholt/days}"
STICK=/mnt/cupboard
PRINTER=desk_left
TOMORROW=$(date -d tomorrow +%Y-%m-%d)
FILE="$DAYS/$TOMORROW.day"

# A day file without a single line means that nobody has planned the day.
if [ ! -s "$FILE" ]; then
    echo "no plan for $TOMORROW, ring the practice manager after 06:50" >&2
    exit 11
fi

# The sheet for a failure of power or network: time, room and patient number, nothing else.
# Two copies, one for the desk and one for the fire folder at the side door.
cut -d';' -f1,2,4 "$FILE" | sort | lp -d "$PRINTER" -n 2 -t "plan $TOMORROW" -

# Days that are over are moved to the stick and removed here after 35 days.
find "$DAYS" -name '*.day' -mtime +1 -newermt '2015-01-01' -exec cp -n {} "$STICK/" \;
find "$DAYS" -name '*.day' -mtime +35 -exec rm -f {} \;

# The stick is encrypted; its free space is reported when less than a tenth is left.
used=$(df -P "$STICK" | awk 'NR == 2 {sub("%", "", $5); print $5}')
if [ "$used" -gt 90 ]; then
    echo "stick nearly full ($used percent), order a new one from the town hall stores" >&2
fi

# Remind everybody once a month to change the code of the medicine cabinet.
[ "$(date +%d)" = 03 ] && echo "change the cabinet code today" | lp -d "$PRINTER" -
exit 0
