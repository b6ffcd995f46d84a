# lib.sh is sourced by the other scripts: paths, ports, addresses, and functions for the processes of a cluster.
#
# The directory K8S_RUN identifies a cluster: it holds the keys, the data of etcd, the logs and the network namespace.
# shellcheck shell=bash disable=SC2034 # the scripts that source this file use the variables

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/cache.sh
source "$here/../cache.sh"

run=${K8S_RUN:-/tmp/trainmaster-k8s}
case $run in
/run/* | /var/lib/* | /var/log/* | /proc/* | /sys/*) echo "K8S_RUN: expected a directory outside /run, /var/lib and /var/log, found $run" >&2 && exit 2 ;;
/*) ;;
*) echo "K8S_RUN: expected an absolute path, found $run" >&2 && exit 2 ;;
esac
bin=$(cache_path k8s) images=$(cache_path k8s-images)
logs=$run/log keys=$run/keys node=$run/node
cgroup=$(basename "$run") # parent cgroup of all pods

# With root, the cluster has a network namespace of its own, with fixed ports. Without root, or in a container without the right to make
# namespaces, only the control plane can run. It listens on loopback, and start.sh selects free ports.
namespace=$run/netns
if [ "$(id -u)" -ne 0 ] || ! unshare --net --mount true 2>/dev/null; then namespace=; fi
port=20100
if [ -f "$run/port" ]; then port=$(cat "$run/port"); fi
set_ports() { # first of 10 consecutive ports
	port=$1 api=$1 etcd_client=$(($1 + 1)) etcd_peer=$(($1 + 2)) controllers=$(($1 + 3)) scheduler=$(($1 + 4))
	kwok=$(($1 + 5)) kubelet=$(($1 + 6)) kubelet_health=$(($1 + 7)) proxy_health=$(($1 + 8)) proxy_metrics=$(($1 + 9))
}
set_ports "$port"
host_api=16443 # port of the API server on loopback of the host, if the word "relay" is started
node_ip=10.87.0.1 pod_net=10.88.0.0/24 pod_gateway=10.88.0.1 service_net=10.96.0.0/24 service_api=10.96.0.1 service_dns=10.96.0.10
cni=${CNI_BIN:-/usr/lib/cni}

export PATH=$bin:$PATH:/usr/sbin:/sbin KUBECONFIG=$run/admin.kubeconfig

began=$(date +%s%N)
say() { printf '%6d ms  %s\n' $((($(date +%s%N) - began) / 1000000)) "$*"; }

in_namespace() {
	if [ -n "$namespace" ]; then
		# not `ip netns exec`, which mounts /sys anew and hides the cgroups
		nsenter --net="$namespace" "$@"
	else
		"$@"
	fi
}

# start_time PID prints the start time of a process, which tells a reused id apart. It prints nothing for a zombie.
start_time() { sed -n 's/.*) \([^Z]\)/\1/p' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# record NAME PID writes the file of a process, "pid starttime".
record() { echo "$2 $(start_time "$2")" >"$run/$1.pid"; }

alive() {
	local id started
	[ -f "$run/$1.pid" ] && read -r id started <"$run/$1.pid" && [ -n "$started" ] && [ "$(start_time "$id")" = "$started" ]
}

process_id() { cut -d' ' -f1 "$run/$1.pid"; }

# background NAME COMMAND... starts a process in the namespace of the cluster. Its environment marks it as a part of this cluster.
background() {
	local name=$1
	shift
	if [ -n "$namespace" ]; then set -- nsenter --net="$namespace" "$@"; fi
	TRAINMASTER_K8S=$run setsid "$@" >>"$logs/$name.log" 2>&1 </dev/null &
	record "$name" $!
}

# members prints the processes of this cluster, except those that dropped their environment.
members() { grep -lzsx "TRAINMASTER_K8S=$run" /proc/[0-9]*/environ | cut -d/ -f3 || true; }

# wait_for NAME SECONDS COMMAND... repeats the command until it succeeds.
wait_for() {
	local name=$1 end=$(($(date +%s) + $2))
	shift 2
	until "$@" >/dev/null 2>&1; do
		if [ "$(date +%s)" -ge $end ]; then
			echo "$name: expected it to be ready, found no answer to: $*; the end of its log:" >&2
			tail -n 20 "$logs/$name.log" >&2 || true
			exit 1
		fi
		sleep 0.1
	done
	say "$name ready"
}

# end NAME [SIGNAL] ends a process of start.sh and waits for it.
end() {
	local id
	if alive "$1"; then
		id=$(process_id "$1")
		kill "${2:--TERM}" "$id" 2>/dev/null || true
		for _ in $(seq 100); do
			alive "$1" || break
			sleep 0.1
		done
		if alive "$1"; then kill -KILL "$id" 2>/dev/null || true; fi
	fi
	rm -f "$run/$1.pid"
}

# node_init prints the id of pid 1 in the pid namespace of the node, as the host numbers it.
node_init() { pgrep -P "$(process_id node)" | head -n 1; }
in_node() { nsenter -t "$(node_init)" --net --mount --pid -- "$@"; }
