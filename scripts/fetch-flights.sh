#!/usr/bin/env bash
# fetch-flights.sh fetches 20,000 flights of 2001 as JSON into the cache (see cache.sh) and links data/flights to them.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cache.sh

fetch() {
	if ! command -v npm >/dev/null; then
		cat >&2 <<MESSAGE
npm is missing, and the flights come as the npm package $flights_package.
Install npm (on Debian: apt-get install npm) and run 'make flights-records' again, or put this file into data/flights:
$flights_digest
MESSAGE
		return 1
	fi
	npm pack --silent --pack-destination "$1" "$flights_package" >/dev/null &&
		tar -xzf "$1"/*.tgz -C "$1" package/data/flights-20k.json &&
		mv "$1"/package/data/flights-20k.json "$1" &&
		rm -rf "$1"/package "$1"/*.tgz || return 1
	if ! (cd "$1" && sha256sum --check --status <<<"$flights_digest"); then
		echo "$flights_package: expected the flights with this SHA-256 digest, found another:" >&2
		echo "$flights_digest" >&2
		return 1
	fi
}

if [ -d data/flights ] && [ ! -L data/flights ]; then
	echo "flights: data/flights is a directory of its own and is left as it is"
	exit 0
fi
cached flights fetch
mkdir -p data
ln -sfn "$entry" data/flights
echo "the flights are in data/flights"
