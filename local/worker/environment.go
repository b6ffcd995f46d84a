package worker

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	"trainmaster/master/rendezvous"
	pb "trainmaster/proto/trainmaster/v1"
)

// maxTFConfig is the maximum size of TF_CONFIG. The kernel takes 128 KiB for a variable.
const maxTFConfig = 64 << 10

// place is what the environment of a process depends on.
type place struct {
	generation  *pb.RingGeneration
	self        int // index in the members
	job         string
	maxRestarts int
	servers     []string // parameter servers of another framework, host:port
	horovod     string   // host:port of the HTTP rendezvous of Horovod; "": there is none
}

// environment returns the variables of the process with the given number in its member.
func (p place) environment(local int) ([]string, error) {
	host, port, err := net.SplitHostPort(p.generation.Coordinator)
	if err != nil {
		return nil, fmt.Errorf("coordinator of generation %d: expected host:port, found %q", p.generation.Number, p.generation.Coordinator)
	}
	me := p.generation.Members[p.self]
	var g rendezvous.Generation
	for _, m := range p.generation.Members {
		g.Members = append(g.Members, rendezvous.Member{ID: m.Id, Processes: int(m.Processes)})
	}
	slot, ok := g.Slot(me.Id, local)
	if !ok {
		return nil, fmt.Errorf("process of member %s: expected 0 to %d, found %d", me.Id, int(me.Processes)-1, local)
	}
	rank, world := slot.Rank, slot.Size
	config, err := p.tfConfig(rank, local)
	if err != nil {
		return nil, err
	}
	text := strconv.Itoa
	list := []string{
		// PyTorch, as torchrun sets them.
		"RANK=" + text(rank), "WORLD_SIZE=" + text(world),
		"LOCAL_RANK=" + text(local), "LOCAL_WORLD_SIZE=" + text(int(me.Processes)),
		"GROUP_RANK=" + text(p.self), "GROUP_WORLD_SIZE=" + text(len(p.generation.Members)),
		"ROLE_NAME=default", "ROLE_RANK=" + text(rank), "ROLE_WORLD_SIZE=" + text(world),
		"MASTER_ADDR=" + host, "MASTER_PORT=" + port,
		"TORCHELASTIC_RESTART_COUNT=" + strconv.FormatUint(p.generation.Number-1, 10), "TORCHELASTIC_MAX_RESTARTS=" + text(p.maxRestarts),
		"TORCHELASTIC_RUN_ID=" + p.job, "TORCHELASTIC_USE_AGENT_STORE=False",
		// Horovod.
		"HOROVOD_RANK=" + text(rank), "HOROVOD_SIZE=" + text(world),
		"HOROVOD_LOCAL_RANK=" + text(local), "HOROVOD_LOCAL_SIZE=" + text(int(me.Processes)),
		"HOROVOD_CROSS_RANK=" + text(slot.CrossRank), "HOROVOD_CROSS_SIZE=" + text(slot.CrossSize),
		"HOROVOD_HOSTNAME=" + me.Id, "HOROVOD_CONTROLLER=gloo", "HOROVOD_CPU_OPERATIONS=gloo",
		// JAX.
		"JAX_COORDINATOR_ADDRESS=" + p.generation.Coordinator, "JAX_NUM_PROCESSES=" + text(world), "JAX_PROCESS_ID=" + text(rank),
	}
	if config != "" {
		list = append(list, "TF_CONFIG="+config)
	}
	if host, port, err := net.SplitHostPort(p.horovod); err == nil {
		list = append(list, "HOROVOD_GLOO_RENDEZVOUS_ADDR="+host, "HOROVOD_GLOO_RENDEZVOUS_PORT="+port)
	}
	return list, nil
}

// tfConfig returns TF_CONFIG; "": it would be wrong or too large. With parameter servers, it is sparse: this process and the servers. Otherwise it has the
// processes of all members, as MultiWorkerMirroredStrategy requires.
func (p place) tfConfig(rank, local int) (string, error) {
	me := p.generation.Members[p.self]
	//guard:own-port-of-a-process
	if int(me.Processes) > len(me.Ports) {
		return "", nil // two processes would have the same address
	}
	cluster := map[string]any{}
	if len(p.servers) > 0 {
		cluster["ps"], cluster["worker"] = p.servers, map[string]string{strconv.Itoa(rank): p.address(me, local)}
	} else {
		var all []string
		for _, m := range p.generation.Members {
			if int(m.Processes) > len(m.Ports) {
				return "", nil
			}
			for i := range int(m.Processes) {
				all = append(all, p.address(m, i))
			}
		}
		cluster["worker"] = all
	}
	b, err := json.Marshal(map[string]any{"cluster": cluster, "task": map[string]any{"type": "worker", "index": rank}})
	switch {
	case err != nil:
		return "", err
	//guard:tf-config-limit
	case len(b) <= maxTFConfig:
		return string(b), nil
	case len(p.servers) > 0:
		return "", fmt.Errorf("TF_CONFIG: expected at most %d bytes, found %d: name fewer --servers", maxTFConfig, len(b))
	}
	return "", nil // of a job of another framework, most likely
}

// address returns host:port of a process. The processes of a member have different ports, which change with the generation.
func (p place) address(m *pb.RingMember, local int) string {
	return net.JoinHostPort(m.Host, strconv.Itoa(int(m.Ports[(p.generation.Number+uint64(local))%uint64(len(m.Ports))])))
}
