#!/bin/sh
# Copy the registers to the stick that the chair takes home on Fridays.
# Usage: copy_registers.sh /media/stick

set -eu

target=${1:?name the folder of the stick}
here=$(cd "$(dirname "$0")/.." && pwd)
stamp=$(date +%Y%m%d)
GENERATIONS=9
SMALLEST_BYTES=400

# A register that has shrunk below 400 bytes was surely emptied by accident.
for table in "$here"/registers/*.csv "$here"/registers/*.tsv; do
    size=$(wc -c < "$table")
    if [ "$size" -lt "$SMALLEST_BYTES" ]; then
        echo "refuse: $table has only $size bytes" >&2
        exit 21
    fi
done

mkdir -p "$target/heron-$stamp"
cp "$here"/registers/* "$target/heron-$stamp/"
( cd "$target/heron-$stamp" && sha256sum -- * > SUMS )

# Keep nine generations on the stick; the eldest goes first.
count=$(find "$target" -maxdepth 1 -type d -name 'heron-*' | wc -l)
while [ "$count" -gt "$GENERATIONS" ]; do
    eldest=$(find "$target" -maxdepth 1 -type d -name 'heron-*' | sort | head -n 1)
    rm -r "$eldest"
    count=$((count - 1))
done

echo "copied to $target, $count generations kept; give the stick to the chair"
