#!/bin/sh
# Put a new version onto the machines, one after the other.
# Usage: rollout.sh 5.2.1

set -eu

version=${1:?say which version}
MACHINES="guillemot puffin"
SETTLE_SECONDS=75
KEEP_VERSIONS=4
CLOSED_FROM=10
CLOSED_UNTIL=18

# No rollout while customers stand at the counters.
hour=$(date +%H)
if [ "$hour" -ge "$CLOSED_FROM" ] && [ "$hour" -lt "$CLOSED_UNTIL" ]; then
    echo "stations are busy, come back after $CLOSED_UNTIL" >&2
    exit 30
fi

dotnet publish -c Release -o "build/$version"

for machine in $MACHINES; do
    scp -qr "build/$version" "$machine:/opt/harbour/$version"
    ssh "$machine" "ln -sfn /opt/harbour/$version /opt/harbour/current \
        && systemctl restart harbourbikes"
    sleep "$SETTLE_SECONDS"
    # The pulse route has to answer with its one word, or we go back.
    answer=$(ssh "$machine" "curl -fs localhost:8417/pulse" || true)
    if [ "$answer" != "beating" ]; then
        echo "$machine is silent, going back" >&2
        ssh "$machine" "ln -sfn /opt/harbour/previous /opt/harbour/current \
            && systemctl restart harbourbikes"
        exit 31
    fi
    ssh "$machine" "ln -sfn /opt/harbour/$version /opt/harbour/previous"
    ssh "$machine" "cd /opt/harbour && ls -d [0-9]* | sort -V \
        | head -n -$KEEP_VERSIONS | xargs -r rm -r"
done
