package pscontrol

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"trainmaster/master/evaluation"
	"trainmaster/master/snapshot"
	"trainmaster/taskqueue"
)

// About describes the job at the cut of a checkpoint set.
type About struct {
	After uint64 // number of the set that the store names; 0: none

	Job      string
	JobID    string // hexadecimal
	Position []byte // of the data: a [Position]
	State    []byte // a snapshot of the job without its task tables: a job that etcd has lost restarts from it
}

// Position describes the data at the cut of a set.
type Position struct {
	Step     uint64            `json:"step,omitempty"` // number of the cut, in a job with rollback
	Epoch    uint32            `json:"epoch"`
	Commit   uint64            `json:"commit"` // of the tasks' state
	Clock    taskqueue.Clock   `json:"clock"`  // of the job
	Datasets []DatasetPosition `json:"datasets"`
}

// DatasetPosition is about the oldest open pass of a dataset.
type DatasetPosition struct {
	Pass  taskqueue.Pass `json:"pass"`
	Tasks int            `json:"tasks"`
	Done  int            `json:"done"` // finished, and entirely in the set
	Kind  taskqueue.Kind `json:"kind,omitempty"`
}

// jobSnapshot is the committed state of the job when a cut was taken. Everything that it counts is in the parameters at the
// cut. In a job with rollback, this includes tasks that are finished and wait for the commit of the cut.
type jobSnapshot struct {
	state    *taskqueue.Snapshot
	roster   map[string][]byte
	keys     []taskqueue.Write // of evaluation rounds and of the strategy
	tables   []*taskqueue.Table
	head     snapshot.Head
	position Position
}

// jobSnapshot copies the state of the job. The copy is small: the committer does nothing else meanwhile.
func (t *term) jobSnapshot(ctx context.Context) (m *jobSnapshot, err error) {
	err = t.Read(ctx, func(q *taskqueue.Queue) {
		m = &jobSnapshot{state: q.Snapshot(0, 0), roster: maps.Clone(t.Roster()), keys: q.SnapshotKeys()}
		//guard:evaluation-at-the-cut
		if value := t.Evaluation(); value != nil {
			m.keys = append(m.keys, taskqueue.Write{Key: evaluation.Key, Value: value})
		}
		for set := 0; q.Table(set) != nil; set++ {
			m.tables = append(m.tables, q.Table(set))
		}
		m.position = Position{Epoch: q.Epoch(), Commit: q.Commit(), Clock: q.Clock()}
		for _, s := range q.Overview().Sets {
			m.position.Datasets = append(m.position.Datasets, DatasetPosition{Pass: s.Pass, Tasks: s.Tasks, Done: s.Done + s.Uncommitted, Kind: s.Kind})
		}
		m.head = snapshot.Head{
			Job: m.state.Job, JobID: hex.EncodeToString(m.state.JobID), Cluster: fmt.Sprintf("%x", m.state.Cluster), Format: m.state.Format,
			Commit: m.state.Commit, Epoch: m.state.Epoch, Status: m.state.Status.String(), Restores: m.state.Restores, Datasets: snapshot.DatasetsOf(q),
		}
	})
	return m, err
}

// about encodes the snapshot for the set of that number.
func (c *checkpointer) about(ctx context.Context, m *jobSnapshot, number uint64) (a About, err error) {
	m.head.Set = number
	a.Job, a.JobID = m.head.Job, m.head.JobID
	if a.Position, err = json.Marshal(m.position); err != nil {
		return a, err
	}
	items, err := c.items(ctx, m)
	if err != nil {
		return a, fmt.Errorf("the state of the job at cut %d: %w", number, err)
	}
	var encoded bytes.Buffer
	err = snapshot.Encode(&encoded, snapshot.Content{Head: m.head, Items: func(yield func(snapshot.Item, error) bool) {
		for _, i := range items {
			if !yield(i, nil) {
				return
			}
		}
	}})
	a.State = encoded.Bytes()
	return a, err
}

// items returns the keys of the job at the cut, except the task tables: a restore rebuilds them from the dataset files.
func (c *checkpointer) items(ctx context.Context, m *jobSnapshot) ([]snapshot.Item, error) {
	settings, _, err := c.term.config.Store.Value(ctx, jobKey)
	if err != nil {
		return nil, err
	}
	state, err := c.term.config.Store.Encode(m.state)
	if err != nil {
		return nil, err
	}
	items := []snapshot.Item{{Key: jobKey, Value: settings}, {Key: taskqueue.StateKey, Value: state}}
	for i, table := range m.tables[:len(m.state.Sets)] {
		dataset, err := c.datasets.of(table)
		if err != nil {
			return nil, err
		}
		items = append(items, snapshot.Item{Key: snapshot.DatasetKey(i), Value: dataset})
	}
	maps.DeleteFunc(c.datasets, func(table *taskqueue.Table, _ []byte) bool { return !slices.Contains(m.tables, table) })
	aside := map[string][]byte{}
	if slices.ContainsFunc(m.head.Datasets, func(d snapshot.Dataset) bool { return d.SetAside > 0 }) {
		if aside, _, err = c.term.config.Store.Prefixed(ctx, taskqueue.AsidePrefix); err != nil {
			return nil, err
		}
	}
	for id, value := range m.roster {
		aside[taskqueue.RosterPrefix+id] = value
	}
	for _, key := range slices.Sorted(maps.Keys(aside)) {
		items = append(items, snapshot.Item{Key: key, Value: aside[key]})
	}
	//guard:decisions-at-the-cut
	items = append(items, m.keys...)
	return items, nil
}

const jobKey = "/job"

// described remembers how tables are described: they never change. An append to an online dataset makes another table.
type described map[*taskqueue.Table][]byte

func (d described) of(table *taskqueue.Table) (text []byte, err error) {
	if d[table] == nil {
		files := []snapshot.DataFile{}
		for i, f := range table.Files() {
			sum := table.IndexDigest(i)
			file := snapshot.DataFile{Path: f.Path, Size: f.Size, Index: hex.EncodeToString(sum[:])}
			if sum, known := table.ChecksumsDigest(i); known {
				file.Checksums = hex.EncodeToString(sum[:])
			}
			files = append(files, file)
		}
		if d[table], err = json.Marshal(files); err != nil {
			return nil, err
		}
	}
	return d[table], nil
}
