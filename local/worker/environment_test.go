package worker

import (
	"fmt"
	"strings"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
)

// asMap returns the variables of a process.
func asMap(t *testing.T, p place, local int) map[string]string {
	t.Helper()
	list, err := p.environment(local)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, v := range list {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	return env
}

func TestEnvironmentOfAProcess(t *testing.T) {
	g := &pb.RingGeneration{Number: 3, Coordinator: "10.0.0.1:4001", Members: []*pb.RingMember{
		{Id: "a", Host: "10.0.0.1", Ports: []uint32{4000, 4001}, Processes: 2},
		{Id: "b", Host: "10.0.0.2", Ports: []uint32{5000}, Processes: 1},
		{Id: "c", Host: "10.0.0.3", Ports: []uint32{6000, 6001, 6002}, Processes: 3},
	}}
	p := place{generation: g, self: 2, job: "digits", maxRestarts: 3, servers: []string{"10.0.1.1:7000"}, horovod: "10.0.2.1:8081"}
	env := asMap(t, p, 1)
	for name, want := range map[string]string{
		"RANK": "4", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "2", "GROUP_WORLD_SIZE": "3",
		"ROLE_RANK": "4", "ROLE_WORLD_SIZE": "6", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4001",
		"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "digits", "TORCHELASTIC_USE_AGENT_STORE": "False",
		"HOROVOD_RANK": "4", "HOROVOD_SIZE": "6", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "3", "HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2", "HOROVOD_HOSTNAME": "c", "HOROVOD_CONTROLLER": "gloo", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.2.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "8081",
		"JAX_COORDINATOR_ADDRESS": "10.0.0.1:4001", "JAX_NUM_PROCESSES": "6", "JAX_PROCESS_ID": "4",
		"TF_CONFIG": `{"cluster":{"ps":["10.0.1.1:7000"],"worker":{"4":"10.0.0.3:6001"}},"task":{"index":4,"type":"worker"}}`,
	} {
		if env[name] != want {
			t.Errorf("%s: expected %s, found %s", name, want, env[name])
		}
	}
	g.Members[2].Ports = []uint32{6000, 6001}
	if _, ok := asMap(t, p, 0)["TF_CONFIG"]; ok {
		t.Error("with servers, member c has 3 processes and 2 ports: expected no TF_CONFIG")
	}
	p.servers = nil
	if _, ok := asMap(t, p, 0)["TF_CONFIG"]; ok {
		t.Error("member c has 3 processes and 2 ports: expected no TF_CONFIG")
	}
	g.Members[2].Ports = []uint32{6000, 6001, 6002}
	want := `{"cluster":{"worker":["10.0.0.1:4001","10.0.0.1:4000","10.0.0.2:5000","10.0.0.3:6000","10.0.0.3:6001","10.0.0.3:6002"]},"task":{"index":4,"type":"worker"}}`
	if got := asMap(t, p, 1)["TF_CONFIG"]; got != want {
		t.Errorf("TF_CONFIG: expected %s, found %s", want, got)
	}
	for i := range 5000 {
		g.Members = append(g.Members, &pb.RingMember{Id: fmt.Sprint("m", i), Host: "10.0.0.4", Ports: []uint32{6000}, Processes: 1})
	}
	if _, ok := asMap(t, p, 0)["TF_CONFIG"]; ok {
		t.Error("the list of workers is too large: expected no TF_CONFIG")
	}
	g.Members = g.Members[:3]
	p.self = 0
	if env := asMap(t, p, 1); env["RANK"] != "1" || env["HOROVOD_CROSS_RANK"] != "0" || env["HOROVOD_CROSS_SIZE"] != "2" {
		t.Errorf("first member: found %v", env)
	}
	for i := range 5000 {
		p.servers = append(p.servers, fmt.Sprintf("10.0.%d.%d:7000", i/250, i%250))
	}
	if _, err := p.environment(0); err == nil || !strings.Contains(err.Error(), "TF_CONFIG: expected at most 65536 bytes") {
		t.Errorf("expected a limit of TF_CONFIG, found %v", err)
	}
}
