#!/usr/bin/env bash
# start.sh starts a Kubernetes cluster on this machine, from the binaries that `make setup-k8s` builds.
#
#   scripts/k8s/start.sh [WORD...]
#
#   control   etcd, kube-apiserver, kube-controller-manager, kube-scheduler
#   kwok      kwok and its fake node kwok-0                 (needs control)
#   node      containerd and kubelet, the node "localhost"  (needs control and root)
#   proxy     kube-proxy: addresses of Services             (needs node)
#   dns       CoreDNS in kube-system                        (needs node and proxy)
#   relay     127.0.0.1:16443 of the host, for kubectl      (needs control and root)
#   all       all of them; the default
#
# Components that already run stay as they are, so start.sh also starts a component again that has ended.
#
#   K8S_RUN          directory of the cluster (/tmp/trainmaster-k8s); each directory is a separate cluster
#   K8S_OWNER        id of a process: when it has ended, the cluster is stopped and removed
#   K8S_NODE_GRACE   time without a heartbeat until a node is NotReady (20s)
set -euo pipefail
# shellcheck source=scripts/k8s/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

words=" ${*:-all} "
if [[ $words == *" all "* ]]; then words=" control kwok node proxy dns relay "; fi
for word in $words; do
	case $word in
	control | kwok) ;;
	node | proxy | dns | relay)
		if [ -z "$namespace" ]; then echo "start.sh: $word: expected root with the right to make namespaces, found user $(id -un) without it: start control and kwok only" >&2 && exit 2; fi
		;;
	*) echo "start.sh: expected control, kwok, node, proxy, dns, relay or all, found '$word'" >&2 && exit 2 ;;
	esac
done
wanted() { [[ $words == *" $1 "* ]]; }

if [ ! -d "$bin" ] || [ ! -d "$images" ]; then echo "start.sh: expected the binaries in $bin and $images, found none: run \`make setup-k8s\`" >&2 && exit 2; fi
needs=(openssl curl)
if [ -n "$namespace" ]; then needs+=(ip nsenter unshare pgrep); fi
if wanted node; then needs+=(containerd runc "$cni/bridge"); fi
if wanted proxy; then needs+=(nft); fi
for command in "${needs[@]}"; do
	command -v "$command" >/dev/null || { echo "start.sh: $command: not found: run \`make setup-k8s\`" >&2 && exit 2; }
done

mkdir -p "$logs" "$keys"
record start $$
trap 'rm -f "$run/start.pid"' EXIT

# stop_with_owner stops the cluster when the owner has ended, even if it was killed.
stop_with_owner() {
	local owner
	owner="$K8S_OWNER $(start_time "$K8S_OWNER")"
	# shellcheck disable=SC2016 # the inner bash expands them
	setsid bash -c 'source "$1/lib.sh"; while [ -d "$run" ] && [ "${2#* }" = "$(start_time "${2% *}")" ]; do sleep 0.5; done
		[ ! -d "$run" ] || exec "$1/stop.sh" --clean' owner "$here" "$owner" >/dev/null 2>&1 </dev/null &
}
if [ -n "${K8S_OWNER:-}" ]; then stop_with_owner; fi

make_namespace() {
	[ -n "$namespace" ] && ! mountpoint -q "$namespace" || return 0
	touch "$namespace"
	unshare --net="$namespace" true
	# node0 carries the address of the node and the route to the addresses of Services. It has no port, so no packet leaves.
	in_namespace bash -ec "
		ip link set lo up
		ip link add node0 type bridge
		ip addr add $node_ip/24 dev node0
		ip link set node0 up
		ip route add $service_net dev node0
		echo 1 >/proc/sys/net/ipv4/ip_forward"
}

# choose_ports selects 10 consecutive ports without a listener, below the range of the kernel for outgoing connections.
choose_ports() {
	[ -z "$namespace" ] && [ ! -f "$run/port" ] || return 0
	local first i
	while :; do
		first=$((20000 + RANDOM % 1200 * 10))
		for i in 0 1 2 3 4 5 6 7 8 9; do
			if (: <"/dev/tcp/127.0.0.1/$((first + i))") 2>/dev/null; then continue 2; fi
		done
		break
	done
	set_ports "$first"
	echo "$first" >"$run/port"
}

make_keys() {
	[ ! -f "$keys/done" ] || return 0
	(
		cd "$keys"
		private() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
		certificate() { # name subject usage [alternative names]
			private "$1"
			openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
			{
				echo "extendedKeyUsage=$3"
				[ -z "${4:-}" ] || echo "subjectAltName=$4"
			} >"$1.ext"
			openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile "$1.ext" -out "$1.crt"
		}
		private ca
		openssl req -x509 -new -key ca.key -subj /CN=test-ca -days 3650 -out ca.crt \
			-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,digitalSignature
		openssl genrsa -out accounts.key 2048
		openssl rsa -in accounts.key -pubout -out accounts.pub
		name=kubernetes.default
		certificate apiserver /CN=kube-apiserver serverAuth \
			"DNS:localhost,DNS:kubernetes,DNS:$name,DNS:$name.svc,DNS:$name.svc.cluster.local,IP:127.0.0.1,IP:$service_api,IP:$node_ip,IP:$pod_gateway"
		certificate admin /O=system:masters/CN=admin clientAuth
		certificate kubelet-client /O=system:masters/CN=apiserver-kubelet-client clientAuth
		certificate controllers /CN=system:kube-controller-manager clientAuth
		certificate scheduler /CN=system:kube-scheduler clientAuth
		certificate node /O=system:nodes/CN=system:node:localhost clientAuth
		certificate proxy /CN=system:kube-proxy clientAuth
		certificate front-proxy /CN=front-proxy clientAuth
	) >"$logs/keys.log" 2>&1
	kubeconfig admin admin "$api"
	if [ -n "$namespace" ]; then kubeconfig host admin "$host_api"; fi
	local user
	for user in controllers scheduler node proxy; do kubeconfig "$user" "$user" "$api"; done
	touch "$keys/done"
	say "keys and certificates"
}

kubeconfig() { # name user port
	cat >"$run/$1.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:$3", certificate-authority: $keys/ca.crt}}]
users: [{name: u, user: {client-certificate: $keys/$2.crt, client-key: $keys/$2.key}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
END
}

start_control() {
	alive etcd || background etcd "$bin/etcd" --data-dir "$run/etcd" --unsafe-no-fsync --name e --log-level warn \
		--listen-client-urls "http://127.0.0.1:$etcd_client" --advertise-client-urls "http://127.0.0.1:$etcd_client" \
		--listen-peer-urls "http://127.0.0.1:$etcd_peer" --initial-advertise-peer-urls "http://127.0.0.1:$etcd_peer" \
		--initial-cluster "e=http://127.0.0.1:$etcd_peer"
	wait_for etcd 60 in_namespace curl -sf "http://127.0.0.1:$etcd_client/health"

	local address=(--bind-address=127.0.0.1 --endpoint-reconciler-type=none)
	if [ -n "$namespace" ]; then address=(--bind-address=0.0.0.0 "--advertise-address=$node_ip"); fi
	alive kube-apiserver || background kube-apiserver "$bin/kube-apiserver" "${address[@]}" \
		--etcd-servers="http://127.0.0.1:$etcd_client" --secure-port="$api" \
		--tls-cert-file="$keys/apiserver.crt" --tls-private-key-file="$keys/apiserver.key" \
		--client-ca-file="$keys/ca.crt" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
		--requestheader-client-ca-file="$keys/ca.crt" --requestheader-allowed-names=front-proxy \
		--requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
		--requestheader-extra-headers-prefix=X-Remote-Extra- \
		--proxy-client-cert-file="$keys/front-proxy.crt" --proxy-client-key-file="$keys/front-proxy.key" \
		--service-account-issuer=https://kubernetes.default.svc \
		--service-account-key-file="$keys/accounts.pub" --service-account-signing-key-file="$keys/accounts.key" \
		--service-cluster-ip-range="$service_net" --allow-privileged=true \
		--kubelet-client-certificate="$keys/kubelet-client.crt" --kubelet-client-key="$keys/kubelet-client.key" \
		--kubelet-preferred-address-types=Hostname,InternalIP --profiling=false
	wait_for kube-apiserver 120 in_namespace curl -sf --cacert "$keys/ca.crt" --cert "$keys/admin.crt" --key "$keys/admin.key" "https://127.0.0.1:$api/readyz"

	# With the default of 20 requests a second, the start takes 5 s longer and 1,000 pods take 50 s.
	local rate=(--kube-api-qps=300 --kube-api-burst=600)
	alive kube-controller-manager || background kube-controller-manager "$bin/kube-controller-manager" "${rate[@]}" \
		--kubeconfig="$run/controllers.kubeconfig" --bind-address=127.0.0.1 --secure-port="$controllers" --leader-elect=false \
		--use-service-account-credentials --service-account-private-key-file="$keys/accounts.key" --root-ca-file="$keys/ca.crt" \
		--cluster-signing-cert-file="$keys/ca.crt" --cluster-signing-key-file="$keys/ca.key" \
		--node-monitor-period=2s --node-monitor-grace-period="${K8S_NODE_GRACE:-20s}"
	alive kube-scheduler || background kube-scheduler "$bin/kube-scheduler" "${rate[@]}" \
		--kubeconfig="$run/scheduler.kubeconfig" --bind-address=127.0.0.1 --secure-port="$scheduler" --leader-elect=false
	wait_for kube-controller-manager 90 in_namespace kubectl get serviceaccount default
	wait_for kube-scheduler 90 in_namespace curl -skf "https://127.0.0.1:$scheduler/healthz"
}

start_kwok() {
	alive kwok || background kwok "$bin/kwok" --kubeconfig="$run/admin.kubeconfig" --config="$bin/kwok.yaml" \
		--manage-all-nodes=false --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake \
		--node-lease-duration-seconds=40 --cidr=10.0.0.1/24 --node-ip=127.0.0.1 --server-address="127.0.0.1:$kwok"
	in_namespace kubectl apply -f "$here/kwok-node.yaml" >/dev/null
	wait_for kwok 60 in_namespace kubectl wait --for=condition=Ready --timeout=1s node/kwok-0
}

start_node() {
	# shellcheck source=scripts/k8s/node.sh
	source "$here/node.sh"
	if ! alive node; then
		write_node_files
		background node unshare --mount --pid --fork --mount-proc --kill-child bash "$node/init.sh"
	elif ! in_node bash -c "kill -0 \$(cat $node/kubelet.pid)" 2>/dev/null; then
		"$here/ctl.sh" kubelet start
	fi
	wait_for node 90 in_namespace kubectl wait --for=condition=Ready --timeout=1s node/localhost
}

start_proxy() {
	if ! alive kube-proxy; then # kube-proxy ends when its configuration file is written again
		cat >"$run/proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: localhost
clusterCIDR: $pod_net
bindAddress: 0.0.0.0
healthzBindAddress: 127.0.0.1:$proxy_health
metricsBindAddress: 127.0.0.1:$proxy_metrics
clientConnection: {kubeconfig: $run/proxy.kubeconfig}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
END
		background kube-proxy "$bin/kube-proxy" --config="$run/proxy.yaml"
	fi
	wait_for kube-proxy 60 in_namespace curl -sf "http://127.0.0.1:$proxy_health/healthz"
}

start_dns() {
	in_namespace kubectl apply -f "$here/dns.yaml" >/dev/null
	wait_for dns 90 in_namespace kubectl -n kube-system rollout status deployment/coredns --timeout=1s
}

start_relay() {
	if ! alive relay; then
		TRAINMASTER_K8S=$run setsid "$images/relay" "127.0.0.1:$host_api" "$namespace" "127.0.0.1:$api" >>"$logs/relay.log" 2>&1 </dev/null &
		record relay $!
	fi
	wait_for relay 10 curl -sf --cacert "$keys/ca.crt" --cert "$keys/admin.crt" --key "$keys/admin.key" "https://127.0.0.1:$host_api/readyz"
}

make_namespace
choose_ports
make_keys
if wanted control; then start_control; fi
if wanted kwok; then start_kwok; fi
if wanted node; then start_node; fi
if wanted proxy; then start_proxy; fi
if wanted dns; then start_dns; fi
if wanted relay; then start_relay; fi
if [ -n "$namespace" ]; then
	say "running; run a command in its network with: K8S_RUN=$run scripts/k8s/ctl.sh exec COMMAND..."
fi
if wanted relay; then say "for kubectl on the host: export KUBECONFIG=$run/host.kubeconfig PATH=$bin:\$PATH"; fi
