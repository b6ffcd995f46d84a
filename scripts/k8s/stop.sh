#!/usr/bin/env bash
# stop.sh ends the processes of the cluster in K8S_RUN (see start.sh), and removes its network namespace and cgroups.
#
#   scripts/k8s/stop.sh [--clean]
#
# start.sh starts the same cluster again. With --clean, the cluster is not ended in order, and its directory is removed.
set -euo pipefail
# shellcheck source=scripts/k8s/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ -d "$run" ] || exit 0

end start -KILL # a start.sh that still runs
end_node() { # pid 1 takes kubelet, containerd and all containers along
	local id
	if alive node; then
		id=$(node_init)
		if [ -n "$id" ]; then kill -KILL "$id" 2>/dev/null || true; fi
	fi
	end node
}
if [ "${1:-}" != --clean ]; then
	for name in kube-proxy kwok kube-scheduler kube-controller-manager; do end "$name"; done
	end_node
	for name in kube-apiserver etcd relay; do end "$name"; done
fi
for _ in $(seq 100); do
	left=$(members)
	[ -n "$left" ] || break
	for id in $left; do kill -KILL "$id" 2>/dev/null || true; done
	sleep 0.1
done

if [ -n "$namespace" ] && mountpoint -q "$namespace"; then umount "$namespace"; fi
rm -f "$run/netns" "$run"/*.pid
for _ in $(seq 50); do # the kernel gives up a cgroup a moment after its last process has ended
	left=
	for directory in /sys/fs/cgroup/*/"$cgroup" "/sys/fs/cgroup/$cgroup"; do
		[ -d "$directory" ] || continue
		find "$directory" -depth -type d -exec rmdir {} \; 2>/dev/null || true
		if [ -d "$directory" ]; then left=$directory; fi
	done
	[ -n "$left" ] || break
	sleep 0.1
done
if [ -n "$left" ]; then echo "stop.sh: $left: expected an empty cgroup, found processes in it" >&2; fi
if [ "${1:-}" = --clean ]; then rm -rf "$run"; fi
