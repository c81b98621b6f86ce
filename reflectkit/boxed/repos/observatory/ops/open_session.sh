#!/bin/sh
# Open a session: check the disk and the clock, start the log, cool the camera.
#
# usage: open_session.sh MEMBER [CAMERA]
# The frames of a session go to a folder with the date of the evening. A frame
# of the main camera has 32 megabytes, so 60 gigabytes are asked for.

set -eu

MEMBER="${1:?who are you}"
CAMERA="${2:-heron_cooled}"
FRAMES="/data/frames/$(date -u -d '12 hours ago' +%Y-%m-%d)"
NEED_GB=60
CLOCK_LIMIT_MS=250

free_gb=$(df -P -BG /data | awk 'NR == 2 { sub("G", "", $4); print $4 }')
if [ "$free_gb" -lt "$NEED_GB" ]; then
    echo "only $free_gb GB free, move old frames to the attic disk" >&2
    exit 1
fi

# the clock comes from the receiver on the mast
offset=$(mastclock --offset-ms)
if [ "${offset#-}" -gt "$CLOCK_LIMIT_MS" ]; then
    echo "clock is off by $offset ms, wait for the receiver" >&2
    exit 2
fi

mkdir -p "$FRAMES"
chgrp observers "$FRAMES"
echo "$(date -u +%Y-%m-%dT%H:%M:%S) WRN session of $MEMBER with $CAMERA" >> "$FRAMES/night.log"

# cool in three stages of twelve minutes so that no ice grows on the window
for stage in 1 2 3; do
    camctl --camera "$CAMERA" --stage "$stage"
    sleep 720
done
python3 -m scheduler.plan_night --member "$MEMBER" > "$FRAMES/plan.txt"
