package e2e

import (
	"bytes"
	"os"
	"testing"
)

// trainedDeterministically is the model that three trainers make, started in the order of their names, each with a pause of
// its own before every record.
func trainedDeterministically(t *testing.T, servers string, delays map[string]string, order ...string) []byte {
	t.Helper()
	j := newJob(t)
	flags := []string{"--passes", "2", "--ps", servers, "--update-mode", "sync", "--trainers", "3", "--seed", "7", "--deterministic"}
	master := j.master(flags...)
	for range servers[0] - '0' {
		j.server()
	}
	var trainers []*process
	for _, id := range order {
		trainers = append(trainers, j.trainer(id, "--model", "mlp", "--record-delay", delays[id]))
	}
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	master.wantExit(0)
	j.wantExactlyOnce(2, tasksPerPass)
	model, err := os.ReadFile(j.model())
	if err != nil {
		t.Fatal(err)
	}
	return model
}

// Two runs agree in every bit, whoever is fast, whoever comes first, and on however many parameter servers.
func TestDeterministic(t *testing.T) {
	t.Parallel()
	one := trainedDeterministically(t, "2", map[string]string{"a": "0s", "b": "1ms", "c": "3ms"}, "a", "b", "c")
	other := trainedDeterministically(t, "1", map[string]string{"a": "3ms", "b": "0s", "c": "0s"}, "c", "a", "b")
	if !bytes.Equal(one, other) {
		t.Errorf("two deterministic runs have made different models, of %d and %d bytes", len(one), len(other))
	}
}
