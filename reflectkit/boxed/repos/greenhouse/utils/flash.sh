#!/bin/sh
# Put a new program on the board of one house over the long cable.
# Usage: flash.sh A build/glasswing.bin

set -eu

house=${1:?say A, B or C}
image=${2:?name the image}
LARGEST=491520
PORT_A=/dev/ttyUSB0
BAUD=57600
COLDEST_OUTSIDE=2

case "$house" in
    A) port=$PORT_A ;;
    B) port=/dev/ttyUSB1 ;;
    C) port=/dev/ttyUSB2 ;;
    *) echo "no house $house" >&2; exit 2 ;;
esac

# The image has to fit into the lower half of the memory; the upper half keeps the
# last program that worked.
size=$(wc -c < "$image")
if [ "$size" -gt "$LARGEST" ]; then
    echo "image is $size bytes, at most $LARGEST fit" >&2
    exit 40
fi

# While a board is flashed its house is not heated, for about four minutes.
outside=$(tail -n 1 /var/log/glasswing/outside.txt | cut -d. -f1)
if [ "$outside" -lt "$COLDEST_OUTSIDE" ]; then
    echo "too cold to flash: $outside degrees outside" >&2
    exit 41
fi

echo "hold the white key on the board until its lamp is violet, then press return"
read -r _
stty -F "$port" "$BAUD" raw -echo
cat "$image" > "$port"
sleep 20
echo "now turn the board off and on; it boots the old program if the new one hangs"
