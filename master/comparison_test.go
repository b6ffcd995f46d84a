package master_test

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
)

// A standby with other files of a dataset ends while another master leads, not when it takes over.
func TestStandbyWithOtherFilesEnds(t *testing.T) {
	store := etcdtest.Store(t)
	config, a, b := twoDatasets(t)
	awaitSets(t, mastertest.Start(t, store, config), 2)
	other := config
	other.Datasets = append([]master.Dataset{}, config.Datasets...)
	other.Datasets[1].Paths = a
	if err := endsWith(t, store, other); !errors.Is(err, master.ErrOtherJob) || !strings.Contains(err.Error(), "--dataset b: another dataset was reported first") {
		t.Errorf("other files: got %v", err)
	}
	second := mastertest.StandBy(t, store, config, nil)
	mastertest.Eventually(t, "a warm standby", second.Warm)

	if err := os.Remove(b[0]); err != nil {
		t.Fatal(err)
	}
	third := mastertest.StandBy(t, store, config, nil)
	mastertest.Eventually(t, "a warm standby without a file", third.Warm)
	if n := count(third.Logged(), "files of the dataset not compared with the job"); n != 1 {
		t.Errorf("warnings about the missing file: found %d, expected 1", n)
	}
}

// A dataset that a component registers, as the evaluation data, is compared too.
func TestStandbyComparesDatasetsOfComponents(t *testing.T) {
	store := etcdtest.Store(t)
	config, a, b := twoDatasets(t)
	config.Datasets = config.Datasets[:1]
	r := mastertest.Start(t, store, config)
	awaitSets(t, r, 1)
	heldOut := master.Dataset{Paths: b, From: "--evaluation-data"}
	heldOut.Name = "held-out"
	if err := r.ReportSet(t.Context(), heldOut.SetSpec, b); err != nil {
		t.Fatal(err)
	}
	other := heldOut
	other.Paths = a
	config.ComponentDatasets = []master.Dataset{other}
	if err := endsWith(t, store, config); !errors.Is(err, master.ErrOtherJob) || !strings.Contains(err.Error(), "--evaluation-data: ") {
		t.Errorf("got %v", err)
	}
}

// The files of a standby are on a store that does not answer: it takes over immediately.
func TestComparisonDoesNotDelayTakeover(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "x")
	store := etcdtest.Store(t)
	config, _, _ := twoDatasets(t)
	first := mastertest.Start(t, store, config)
	awaitSets(t, first, 2)
	at := "?use_path_style=true&endpoint=http://" + silent.Addr().String()
	config.Roots = []string{"s3://bucket/" + at}
	config.Datasets = append([]master.Dataset{}, config.Datasets...)
	config.Datasets[0].Paths = []string{"s3://bucket/x/*" + at}
	second := mastertest.StandBy(t, store, config, nil)
	if err := silent.(*net.TCPListener).SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	listing, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer listing.Close()
	began := time.Now()
	if err := first.Stop(); err != nil {
		t.Error(err)
	}
	second.AwaitLeading()
	if took := time.Since(began); took > mastertest.LeaseTTL/2 {
		t.Errorf("the next leader led after %v, expected a released lock", took)
	}
}
