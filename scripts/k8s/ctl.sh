#!/usr/bin/env bash
# ctl.sh acts on the cluster in K8S_RUN (see start.sh).
#
#   scripts/k8s/ctl.sh exec COMMAND...           run a command in the network of the cluster, which has pods and Services
#   scripts/k8s/ctl.sh load FILE.tar...          import images into the node
#   scripts/k8s/ctl.sh ctr ARGUMENTS...          run the client of containerd
#   scripts/k8s/ctl.sh kubelet stop|kill|start   end the kubelet with SIGTERM or SIGKILL, or start it again; its containers stay
#   scripts/k8s/ctl.sh stop|kill COMPONENT       end etcd, kube-apiserver, ...; start.sh starts it again
set -euo pipefail
# shellcheck source=scripts/k8s/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1:-} in
exec)
	shift
	in_namespace "$@"
	;;
load)
	shift
	for file; do in_node ctr -a "$node/containerd.sock" -n k8s.io images import "$(realpath "$file")"; done
	;;
ctr)
	shift
	in_node ctr -a "$node/containerd.sock" -n k8s.io "$@"
	;;
kubelet)
	case ${2:-} in
	stop) in_node bash -c "kill \$(cat $node/kubelet.pid)" ;;
	kill) in_node bash -c "kill -KILL \$(cat $node/kubelet.pid)" ;;
	start) setsid nsenter -t "$(node_init)" --net --mount --pid -- bash "$node/kubelet.sh" >/dev/null 2>&1 </dev/null & ;;
	*) sed -n '3,8s/^# *//p' "$0" >&2 && exit 2 ;;
	esac
	;;
stop) end "${2:?}" ;;
kill) end "${2:?}" -KILL ;;
*) sed -n '3,8s/^# *//p' "$0" >&2 && exit 2 ;;
esac
