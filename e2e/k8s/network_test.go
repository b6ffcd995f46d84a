//go:build k8s

package k8s

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestServicesAndNamesReachPods(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.put(t, ns, "services.yaml")

	// A pod on the network of pods, and one on the network of the node.
	for _, client := range []string{"client", "client-host"} {
		c.Await(t, 90*time.Second, ns, "pod/"+client, "{.status.phase}", "Succeeded")
	}
	for _, want := range []string{"v1.36", `"kind":"Service"`} {
		if log := c.Kubectl(t, "-n", ns, "logs", "client"); !strings.Contains(strings.ReplaceAll(log, `": "`, `":"`), want) {
			t.Errorf("answers of the API in a pod: expected %s, found %s", want, log)
		}
	}
	// A pod reaches itself through its own Service.
	c.Kubectl(t, "-n", ns, "exec", "self", "--", "/probe", "get", "40", "http://loop", "http://web")
	// The API server reaches pods.
	Until(t, 90*time.Second, func() error {
		out, err := c.Try("get", "--raw", "/api/v1/namespaces/"+ns+"/services/web/proxy/")
		if err == nil && !strings.HasPrefix(out, "web-") {
			err = fmt.Errorf("proxy of the API server: expected the name of a pod, found %q", out)
		}
		return err
	})
	// This process is in the network namespace of the cluster.
	for _, address := range []string{
		c.Get(t, ns, "svc/web", "{.spec.clusterIP}"),
		"10.87.0.1:" + c.Get(t, ns, "svc/web-nodeport", "{.spec.ports[0].nodePort}"),
		c.Get(t, ns, "pod/self", "{.status.podIP}") + ":8080",
	} {
		get(t, address)
	}
}

// get requires an answer of an HTTP server.
func get(t *testing.T, address string) {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	Until(t, 90*time.Second, func() error {
		response, err := client.Get("http://" + address)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if _, err = io.Copy(io.Discard, response.Body); err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", address, response.Status)
		}
		return err
	})
}

func TestPodsOfAStatefulSetReachEachOtherByName(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.put(t, ns, "stateful.yaml")
	c.Kubectl(t, "-n", ns, "rollout", "status", "sts/peers", "--timeout=180s")
	c.Kubectl(t, "-n", ns, "exec", "peers-0", "--", "/probe", "get", "60", "http://peers-1.peers:8080")
}
