package podmanager_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"trainmaster/master/podmanager"
)

func TestDecodeRefusesOtherBytes(t *testing.T) {
	for name, c := range map[string]struct {
		bytes string
		err   error
	}{
		"empty":             {"", podmanager.ErrDamaged},
		"a newer format":    {`{"format":2}`, podmanager.ErrNewer},
		"no format":         {`{}`, podmanager.ErrDamaged},
		"another spelling":  {`{"format": 1}`, podmanager.ErrDamaged},
		"an unknown field":  {`{"format":1,"more":1}`, podmanager.ErrDamaged},
		"an unknown role":   {`{"format":1,"slots":[{"role":"x","index":0,"attempt":1}]}`, podmanager.ErrDamaged},
		"no order":          {`{"format":1,"slots":[{"role":"worker","index":1,"attempt":1},{"role":"worker","index":0,"attempt":1}]}`, podmanager.ErrDamaged},
		"a negative number": {`{"format":1,"slots":[{"role":"worker","index":0,"attempt":-1}]}`, podmanager.ErrDamaged},
		"too many":          {`{"format":1,"goals":{"worker":{"given":2001,"count":1}}}`, podmanager.ErrDamaged},
		"an unknown end":    {`{"format":1,"slots":[{"role":"worker","index":0,"done":"x"}]}`, podmanager.ErrDamaged},
		"too large":         {strings.Repeat(" ", podmanager.MaxBytes+1), podmanager.ErrDamaged},
	} {
		if _, err := podmanager.Decode([]byte(c.bytes)); !errors.Is(err, c.err) {
			t.Errorf("%s: expected %v, found %v", name, c.err, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"format":1,"goals":{"worker":{"given":2,"count":2}},"slots":[{"role":"worker","index":0,"attempt":1,"charged":1,"row":1,"memory":7,"after":2000,"done":"given-up","reason":"exit code 1"}]}`))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := podmanager.Decode(b)
		if err == nil && !bytes.Equal(s.Encode(), b) {
			t.Errorf("decoded %q, encoded %q", b, s.Encode())
		}
	})
}

func TestLongReasonKeepsItsEnd(t *testing.T) {
	p := podmanager.Pod{Exit: &podmanager.Exit{Code: 1, Message: strings.Repeat("\u00e4", 300) + "\x00\xff the end"}}
	_, reason := p.Outcome()
	if len(reason) > 256 || !strings.HasSuffix(reason, "the end") {
		t.Errorf("found %d bytes: %q", len(reason), reason)
	}
	s := podmanager.State{Slots: []podmanager.Slot{{Role: podmanager.Worker, Attempt: 1, Reason: reason}}}
	if _, err := podmanager.Decode(s.Encode()); err != nil {
		t.Error(err)
	}
}

func TestConfigNamesTheSetting(t *testing.T) {
	good := podmanager.Config{OOMFactor: 1.5, Workers: podmanager.Group{Count: 2, Min: 1, Memory: 5}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want   string
		change func(*podmanager.Config)
	}{
		{"workers: expected MIN from 1", func(c *podmanager.Config) { c.Workers.Min = 3 }},
		{"workers: expected 0", func(c *podmanager.Config) { c.Workers.Count = 2001 }},
		{"group-size", func(c *podmanager.Config) { c.Workers.Size = 2001 }},
		{"ps: expected 0", func(c *podmanager.Config) { c.Servers.Count = -1 }},
		{"max-relaunch:", func(c *podmanager.Config) { c.MaxRelaunch = -1 }},
		{"oom-memory-factor:", func(c *podmanager.Config) { c.OOMFactor = 0 }},
		{"max-memory:", func(c *podmanager.Config) { c.MaxMemory = 4 }},
	} {
		bad := good
		c.change(&bad)
		if err := bad.Validate(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("expected %q, found %v", c.want, err)
		}
	}
}

func TestReasonIsTheLastLineOfALog(t *testing.T) {
	p := podmanager.Pod{Exit: &podmanager.Exit{Code: 64, Message: "starting\n--data: expected a file\nSee 'master trainer --help'.\n\n"}}
	if _, reason := p.Outcome(); reason != "exit code 64 (usage): --data: expected a file" {
		t.Errorf("found %q", reason)
	}
}

// F272: a container that a signal has ended has no last words: the end of its log is an arbitrary line.
func TestReasonOfAKilledContainerHasNoLineOfItsLog(t *testing.T) {
	for code, want := range map[int]string{137: "ended by signal 9", 143: "ended by signal 15", 75: "exit code 75 (temporary failure): level=info"} {
		p := podmanager.Pod{Exit: &podmanager.Exit{Code: code, Message: "level=info"}}
		if outcome, reason := p.Outcome(); outcome != podmanager.Free || reason != want {
			t.Errorf("expected %q, found %v, %q", want, outcome, reason)
		}
	}
}

// F283: the state of the most pods, all given up with long reasons, is smaller than the largest value of etcd.
func TestStateOfAllPodsFitsAValue(t *testing.T) {
	config := podmanager.Config{Workers: podmanager.Group{Count: podmanager.MaxPods, Min: 1}, MaxRelaunch: 3, OOMFactor: 1.5}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	config.Servers.Count = 1
	if err := config.Validate(); err == nil || !strings.Contains(err.Error(), "expected at most 2000 pods with the parameter servers, found 2001") {
		t.Errorf("one pod more: found %v", err)
	}
	s := podmanager.State{Goals: map[podmanager.Role]podmanager.Goal{podmanager.Worker: {Given: podmanager.MaxPods, Count: podmanager.MaxPods}}}
	for i := range podmanager.MaxPods {
		s.Slots = append(s.Slots, podmanager.Slot{
			Role: podmanager.Worker, Index: i, Attempt: 1000, Charged: 4, Row: 1000, Memory: 1 << 40, After: 1 << 40, Done: podmanager.GivenUp,
			Reason: strings.Repeat("cannot open \"/data\": ", 13)[:256],
		})
	}
	b := s.Encode()
	const most = 1 << 20 // etcd accepts requests of 1.5 MiB, which have the state of the queue and the ledger too
	if len(b) > most {
		t.Errorf("expected at most %d bytes, found %d", most, len(b))
	}
	if _, err := podmanager.Decode(b); err != nil {
		t.Error(err)
	}
}

// F321: the initial number applies to the first leader only, so that the number of a later request stays.
func TestInitialWorkersApplyToTheFirstLeader(t *testing.T) {
	c := podmanager.Config{Workers: podmanager.Group{Min: 1, Count: 8, Begin: 3}}
	if g := c.Goal(podmanager.State{}, podmanager.Worker); g != (podmanager.Goal{Given: 8, Count: 3}) {
		t.Errorf("the first leader: expected 3 of 8, found %+v", g)
	}
	later := podmanager.State{Goals: map[podmanager.Role]podmanager.Goal{podmanager.Worker: {Given: 8, Count: 5}}}
	if g := c.Goal(later, podmanager.Worker); g.Count != 5 {
		t.Errorf("a later leader: expected 5, found %+v", g)
	}
	c.OOMFactor, c.Workers.Begin = 1, 9
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "initial-workers: expected 1 to 8") {
		t.Errorf("found %v", err)
	}
}
