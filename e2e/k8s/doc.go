// Package k8s runs tests on a real Kubernetes cluster, which it starts on this machine: control plane, node with containerd, fake nodes,
// Services and DNS. Everything but this comment has the build tag k8s:
//
//	make test-k8s
//	go test -tags k8s ./e2e/k8s -run TestX -v
//
// A test calls Cluster, or ControlPlane if it needs no containers. TestMain of each package with such tests calls Main.
package k8s
