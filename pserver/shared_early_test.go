package pserver_test

import (
	"sync"
	"testing"

	"trainmaster/pserver"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/sharedmem"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params"
)

// A trainer that writes into its shared memory at any time, also between the check and the update, harms no server and no
// checkpoint. The server continues, and restarts from its last checkpoint.
func TestTrainerThatReusesSharedMemoryTooEarly(t *testing.T) {
	words := params.Table{Name: "t", Dim: 4, Init: params.Zeros}
	dir, kept := socketFolder(t), t.TempDir()
	b := newBook(1)
	cfg := pserver.Config{DataSocket: dir, CheckpointDir: kept}
	server := startServer(t, b, 0, cfg)
	client := connect(t, b, params.Config{Mode: params.Async, Tables: []params.Table{words}})
	mustInit(t, client, little())
	sound := []int64{1, 2, 3}
	must(t, client.PushRows(within(t), "t", 1, 1, sound, make([]float32, len(sound)*words.Dim)))

	for step := uint64(1); step <= 60; step++ {
		p, memory := sharingTable(t, server.addr, theSocket(t, dir), words)
		payload, r := batchOf(memory.Slot(memory.Next()), 40, words.Dim)
		head := p.head
		head.Op, head.Step, head.Flags = wire.PushRows, step, wire.Shared
		_, err := p.nc.Write(frame(head, payload)[:wire.HeaderSize])
		must(t, err)
		answered := make(chan struct{})
		var scribbler sync.WaitGroup
		scribbler.Go(func() {
			span, id := r.Spans[len(r.Spans)-1], r.IDs[len(r.IDs)-1]
			for {
				select {
				case <-answered:
					return
				default:
				}
				// For most of the time all is as it was, so that the frame passes the checks.
				for range 50 {
					r.Spans[len(r.Spans)-1], r.IDs[len(r.IDs)-1] = span, id
				}
				r.Spans[len(r.Spans)-1].Slot, r.IDs[len(r.IDs)-1] = 5000, r.IDs[0]
				r.Spans[len(r.Spans)-1], r.IDs[len(r.IDs)-1] = span, id
			}
		})
		_, _, _ = p.read() // applied, or refused
		close(answered)
		scribbler.Wait()
		p.nc.Close()
	}
	rows := make([]float32, len(sound)*words.Dim)
	_, err := client.Lookup(within(t), "t", sound, rows, 0)
	must(t, err)
	server.stop()
	must(t, server.wait())
	startServer(t, b, 0, cfg)
	_, err = client.Lookup(within(t), "t", sound, rows, 0)
	must(t, err)
}

// sharingTable says hello as trainer 9 of a model with a table, through the socket, and gets memory.
func sharingTable(t *testing.T, addr, path string, table params.Table) (*peer, *sharedmem.Memory) {
	t.Helper()
	must(t, table.Validate())
	model, err := placement.New([]placement.Tensor{{Name: "b", Shape: []int{2}}}, 1, table)
	must(t, err)
	return sharingAs(t, addr, path, model.Digest(), 9, wire.RowBatch)
}

// batchOf is a push of rows of every slot.
func batchOf(memory []byte, perSlot, dim int) ([]byte, wire.Rows) {
	bySlot := make([][]int64, table.Slots)
	for id, full := int64(1), 0; full < table.Slots; id++ {
		slot := table.SlotOf(id)
		if len(bySlot[slot]) < perSlot {
			if bySlot[slot] = append(bySlot[slot], id); len(bySlot[slot]) == perSlot {
				full++
			}
		}
	}
	payload, r := wire.Layout(memory, table.Slots, table.Slots*perSlot, dim)
	wire.Number(payload, 0, 1)
	ids := r.IDs[:0]
	for slot := range bySlot {
		r.Spans[slot] = table.Span{Slot: uint32(slot), Rows: uint32(perSlot)}
		ids = append(ids, bySlot[slot]...)
	}
	clear(r.Values)
	return payload, r
}
