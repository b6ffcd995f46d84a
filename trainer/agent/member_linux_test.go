package agent_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/mastertest"
	"trainmaster/master/rendezvous"
	"trainmaster/master/ring"
)

// memberSocket in place of a socket makes the agent of a member.
const memberSocket = "member"

type ringAnswer struct {
	Update, Generation uint64
	State, Reason      string
	Ended              bool
	Rank               int
	Members            []struct{ ID, Host string }
	Found              bool
	Values             [][]byte
	Number             int64
	Member             string
}

func (p *peer) ring(t *testing.T, op string, fields map[string]any) (r ringAnswer) {
	t.Helper()
	if err := json.Unmarshal(p.call(t, op, fields).raw, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// awaitGeneration waits for a generation above former with a number of members.
func (p *peer) awaitGeneration(t *testing.T, former uint64, members int) ringAnswer {
	t.Helper()
	after := uint64(0)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		r := p.ring(t, "ring", map[string]any{"after": after, "wait": 5})
		if after = r.Update; r.State == "member" && r.Generation > former && !r.Ended && len(r.Members) == members {
			return r
		}
	}
	t.Fatalf("expected a generation above %d with %d members", former, members)
	return ringAnswer{}
}

// F433: members of the ring by their agents: values, a failure, a process that ends without a word, the end of the ring.
func TestAgentOfAMember(t *testing.T) {
	store := etcdtest.Store(t)
	r := ring.New(ring.Config{Rendezvous: rendezvous.Config{Min: 1, Max: 3, Window: 100 * time.Millisecond}, Store: store})
	m := mastertest.Start(t, store, master.Config{Components: []component.Component{r}, Ring: r})
	peers := map[string]*peer{}
	for _, id := range []string{"a", "b", "c"} {
		p := begin(t, m.Addr, id, memberSocket)
		if hello := p.ring(t, "hello", map[string]any{"version": 1, "wait": 30}); hello.Member != id {
			t.Fatalf("expected member %s, found %+v", id, hello)
		}
		peers[id] = p
	}
	a, b, c := peers["a"], peers["b"], peers["c"]
	g := a.awaitGeneration(t, 0, 3)
	ranks := map[int]bool{}
	for _, p := range peers {
		one := p.awaitGeneration(t, g.Generation-1, 3)
		ranks[one.Rank] = one.Members[one.Rank].Host == "127.0.0.1"
	}
	if !ranks[0] || !ranks[1] || !ranks[2] {
		t.Errorf("expected the ranks 0 to 2 at 127.0.0.1, found %v", ranks)
	}

	of := func(more map[string]any) map[string]any {
		fields := map[string]any{"generation": g.Generation}
		for k, v := range more {
			fields[k] = v
		}
		return fields
	}
	waits := b.send("value_get", of(map[string]any{"keys": []string{"k", "n"}, "wait": 30}))
	a.call(t, "value_set", of(map[string]any{"key": "k", "value": []byte("v\x00")}))
	if sum := c.ring(t, "value_add", of(map[string]any{"key": "n", "amount": 5})); sum.Number != 5 {
		t.Errorf("expected 5, found %+v", sum)
	}
	answer, err := b.await(waits)
	if err != nil {
		t.Fatal(err)
	}
	var got ringAnswer
	if err := json.Unmarshal(answer.raw, &got); err != nil || !got.Found || string(got.Values[0]) != "v\x00" || string(got.Values[1]) != "5" {
		t.Errorf("expected the values v and 5, found %s", answer.raw)
	}
	if swapped := a.ring(t, "value_compare_set", of(map[string]any{"key": "n", "expected": []byte("5"), "value": []byte("x")})); string(swapped.Values[0]) != "x" {
		t.Errorf("expected x, found %+v", swapped)
	}
	if gone := a.ring(t, "value_delete", of(map[string]any{"key": "k"})); !gone.Found {
		t.Errorf("expected a deleted value, found %+v", gone)
	}
	if none := b.ring(t, "value_get", of(map[string]any{"keys": []string{"k"}, "wait": 0})); none.Found {
		t.Errorf("expected no value, found %+v", none)
	}
	a.refused(t, "invalid", "expected a decimal number", "value_add", of(map[string]any{"key": "n", "amount": 1}))
	a.refused(t, "invalid", "expected an operation of a member", "next", nil)

	a.call(t, "ring_failed", of(map[string]any{"reason": "exit code 1"}))
	next := a.awaitGeneration(t, g.Generation, 3)
	a.call(t, "ring_failed", of(map[string]any{"reason": "again, of a generation that has ended"}))
	c.conn.Close() // its process ends without a word
	last := a.awaitGeneration(t, next.Generation, 2)
	if want := fmt.Sprint(last.Generation); b.awaitGeneration(t, next.Generation, 2).Generation != last.Generation {
		t.Errorf("expected generation %s at both members", want)
	}
	a.call(t, "ring_close", map[string]any{"reason": "torchrun has ended", "wait": 30})
	for after := uint64(0); ; {
		r := b.ring(t, "ring", map[string]any{"after": after, "wait": 30})
		if after = r.Update; r.State == "closed" {
			break
		}
	}
	// The master has ended, or ends: no request waits for it.
	b.refused(t, "closed", "torchrun has ended", "ring", map[string]any{"after": 1 << 40, "wait": 30})
	b.refused(t, "closed", "torchrun has ended", "value_get", map[string]any{"generation": last.Generation, "keys": []string{"k"}, "wait": 1000})
	b.refused(t, "closed", "torchrun has ended", "value_set", map[string]any{"generation": last.Generation, "key": "k", "value": []byte("v")})
	b.call(t, "ring_close", nil)
}

// value_get has its reply after its wait also while no master answers (docs/formats/agent.md).
func TestValuesReplyWithoutAMaster(t *testing.T) {
	store := etcdtest.Store(t)
	r := ring.New(ring.Config{Rendezvous: rendezvous.Config{Min: 1, Max: 1}, Store: store})
	m := mastertest.Start(t, store, master.Config{Components: []component.Component{r}, Ring: r})
	a := begin(t, m.Addr, "a", memberSocket)
	a.ring(t, "hello", map[string]any{"version": 1, "wait": 30})
	g := a.awaitGeneration(t, 0, 1)
	_ = m.Stop()
	_ = a.conn.SetReadDeadline(time.Now().Add(time.Minute))
	got, err := a.await(a.send("value_get", map[string]any{"generation": g.Generation, "keys": []string{"k"}, "wait": 1}))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(got.raw), `"found":false`) {
		t.Errorf("expected no values, found %s", got.raw)
	}
}
