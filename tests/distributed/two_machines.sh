# Runs a command twice at once, as on two machines: each has a network of its own, and a cable joins them.
# By: unshare --map-root-user --net --uts bash two_machines.sh COMMAND...
set -euo pipefail
ip link set lo up
hostname 10.77.0.1  # torchrun looks up the name of the machine that it runs on
ip link add cable-one type veth peer name cable-two
unshare --net --uts sleep 300 &
second=$!
trap 'kill $second 2>/dev/null || true' EXIT
until [ "$(readlink /proc/$second/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
there() { nsenter --target $second --net --uts "$@"; }
ip link set cable-two netns $second
ip address add 10.77.0.1/24 dev cable-one
ip link set cable-one up
there hostname 10.77.0.2
there ip link set lo up
there ip address add 10.77.0.2/24 dev cable-two
there ip link set cable-two up
GLOO_SOCKET_IFNAME=cable-two there "$@" &
other=$!
GLOO_SOCKET_IFNAME=cable-one "$@" && here=0 || here=$?
wait $other && away=0 || away=$?
exit $((here | away))
