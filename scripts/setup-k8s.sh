#!/usr/bin/env bash
# setup-k8s.sh installs what the tests on Kubernetes need and this machine lacks: programs from Debian for the node, and in the cache
# (see cache.sh) the programs and images of the cluster, built from Go modules. If nothing is missing, it changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/cache.sh
source scripts/cache.sh

# command -> the package that brings it
declare -A packages=(
	[openssl]=openssl
	[curl]=curl
)
if [ "$(id -u)" -eq 0 ] && [ "$(uname)" = Linux ]; then # the node needs root
	packages[containerd]=containerd
	packages[runc]=runc
	packages[${CNI_BIN:-/usr/lib/cni}/bridge]=containernetworking-plugins
	packages[nft]=nftables
	packages[ip]=iproute2
	packages[pgrep]=procps
fi

debian_packages() {
	local missing=() command
	for command in "${!packages[@]}"; do
		PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null || missing+=("${packages[$command]}")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
		echo "missing on this machine: ${missing[*]} (names of Debian packages): tests that need them will be skipped" >&2
		return 0
	fi
	echo "installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# compile MODULE PROGRAM PACKAGE [LDFLAGS] builds a program. Other flags would compile every dependency again.
compile() {
	local began=$SECONDS
	CGO_ENABLED=0 GOWORK=off go build -C "scripts/tools/k8s/$1" -trimpath -buildvcs=false -ldflags "-s -w ${4:-}" -o "$2" "$3" &&
		echo "  $(basename "$2"): $((SECONDS - began)) s, $(($(stat -c %s "$2") >> 20)) MiB"
}

# programs DIR builds Kubernetes, etcd, kwok and CoreDNS. One binary contains the components of Kubernetes; its links select the component.
programs() {
	local version=k8s.io/component-base/version flags minor name stages file
	minor=${kubernetes_version#v1.}
	flags="-X $version.gitVersion=$kubernetes_version -X $version.gitMajor=1 -X $version.gitMinor=${minor%.*}"
	flags+=" -X $version.gitTreeState=clean -X $version.buildDate=2026-01-01T00:00:00Z"
	compile hyper "$1/hyper" . "$flags" &&
		compile etcd "$1/etcd" go.etcd.io/etcd/server/v3 &&
		compile kwok "$1/kwok" sigs.k8s.io/kwok/cmd/kwok &&
		compile coredns "$1/coredns" . || return 1
	for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
		ln -s hyper "$1/$name" || return 1
	done
	stages=$(go list -C scripts/tools/k8s/kwok -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage || return 1
	for file in "$stages"/node/fast/*.yaml "$stages"/node/heartbeat-with-lease/*.yaml "$stages"/pod/fast/*.yaml "$stages"/pod/chaos/*.yaml; do
		case $file in
		*kustomization.yaml) ;;
		*) echo --- && cat "$file" || return 1 ;;
		esac
	done >"$1/kwok.yaml"
}

# images DIR builds the relay and the images of the cluster.
images() {
	local name bin work
	bin=$(cache_path k8s) && work=$(mktemp -d) || return 1
	for name in relay pause probe; do
		CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$work/$name" "./scripts/k8s/$name" || return 1
	done
	go run -buildvcs=false ./scripts/k8s/mkimg "$1/pause.tar" localhost/pause:1 "$work/pause" &&
		go run -buildvcs=false ./scripts/k8s/mkimg "$1/probe.tar" localhost/probe:1 "$work/probe" &&
		go run -buildvcs=false ./scripts/k8s/mkimg "$1/coredns.tar" localhost/coredns:1 "$bin/coredns" &&
		mv "$work/relay" "$1/relay" && rm -rf "$work"
}

# helm DIR builds Helm, for the test of the chart. It has an entry of its own, so that its version does not build Kubernetes again.
helm() { compile helm "$1/helm" helm.sh/helm/v4/cmd/helm; }

# prepare ENTRY MESSAGE FUNCTION builds a missing entry of the cache.
prepare() {
	local path
	path=$(cache_path "$1") && [ -d "$path" ] && return 0
	echo "$2"
	cached "$1" "$3" || { echo "failed: tests that need it will be skipped" >&2 && return 1; }
}

debian_packages
if prepare k8s "building Kubernetes $kubernetes_version from scripts/tools/k8s (8 to 12 minutes)" programs; then
	prepare k8s-images "building the images of the cluster" images || true
	prepare k8s-helm "building Helm from scripts/tools/k8s/helm (1 to 2 minutes)" helm || true
fi
