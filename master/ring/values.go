package ring

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"trainmaster/master/component"
	"trainmaster/master/rendezvous"
	"trainmaster/taskqueue"
)

// Bounds of calls about values.
const (
	maxValueWait = 10 * time.Second
	maxReadKeys  = 1024
	maxDropped   = 32 // values of old generations that one change removes: a transaction of etcd has at most 128 operations
)

// values are the stored values of the members.
type values struct {
	change sync.Mutex // held by one change until it is stored

	// The mu of the ring guards the rest.
	byGeneration map[uint64]map[string]rendezvous.Value
	bytes        int // of all values
}

// load replaces the values with the stored ones.
func (v *values) load(stored map[string][]byte) error {
	v.byGeneration, v.bytes = map[uint64]map[string]rendezvous.Value{}, 0
	for path, b := range stored {
		generation, key, err := rendezvous.ParseValuesKey(path)
		if err != nil {
			return err
		}
		value, err := rendezvous.DecodeValue(b)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		v.put(generation, key, value)
	}
	return nil
}

func (v *values) put(generation uint64, key string, value rendezvous.Value) {
	if v.byGeneration[generation] == nil {
		v.byGeneration[generation] = map[string]rendezvous.Value{}
	}
	v.bytes += len(value.Content) - len(v.byGeneration[generation][key].Content)
	v.byGeneration[generation][key] = value
}

func (v *values) drop(generation uint64, key string) {
	v.bytes -= len(v.byGeneration[generation][key].Content)
	if delete(v.byGeneration[generation], key); len(v.byGeneration[generation]) == 0 {
		delete(v.byGeneration, generation)
	}
}

// path names a value.
type path struct {
	generation uint64
	key        string
}

// obsolete returns up to maxDropped keys of generations before the kept ones.
func (v *values) obsolete(current uint64) (paths []path) {
	for generation, keys := range v.byGeneration {
		if generation+rendezvous.KeptGenerations > current {
			continue
		}
		for key := range keys {
			if paths = append(paths, path{generation, key}); len(paths) == maxDropped {
				return paths
			}
		}
	}
	return paths
}

// checkLocked returns an error for a caller that is no member, or for a generation without values.
func (r *Ring) checkLocked(k rendezvous.MemberKey, generation uint64) error {
	if r.term == nil {
		return errNotLeader
	}
	if err := r.presentLocked(k); err != nil {
		return err
	}
	current := r.state.Ring.Number
	if generation < 1 || generation > current {
		return fmt.Errorf("%w: generation: expected 1 to %d, found %d", ErrBad, current, generation)
	}
	//guard:values-of-kept-generations
	if generation+rendezvous.KeptGenerations <= current {
		return fmt.Errorf("%w: expected %d, or one of the %d before it, found %d", ErrOld, current, rendezvous.KeptGenerations-1, generation)
	}
	return nil
}

// Change changes a value of a generation. It returns when the change is stored.
func (r *Ring) Change(ctx context.Context, k rendezvous.MemberKey, generation, sequence uint64, key string, op rendezvous.Operation) (reply rendezvous.Change, err error) {
	if err := cmp.Or(rendezvous.CheckValueKey(key), checkSequence(sequence)); err != nil {
		return reply, err
	}
	r.values.change.Lock()
	defer r.values.change.Unlock()
	term, next, old, reply, err := r.plan(k, generation, sequence, key, op)
	if err != nil || next == nil {
		return reply, err
	}
	writes := []taskqueue.Write{{Key: rendezvous.ValuesKey(generation, key), Value: next.Encode()}}
	for _, o := range old {
		writes = append(writes, taskqueue.Write{Key: rendezvous.ValuesKey(o.generation, o.key), Delete: true})
	}
	//guard:ring-value-stored-first
	a, err := term.Submit(context.WithoutCancel(ctx), &taskqueue.StoreKeys{Writes: writes}) // it returns at the end of the term
	if err := cmp.Or(err, a.Err); err != nil {
		return reply, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.term != term {
		return reply, errNotLeader // the next leader of this process has read it
	}
	r.values.put(generation, key, *next)
	for _, o := range old {
		r.values.drop(o.generation, o.key)
	}
	r.broadcastLocked()
	return reply, nil
}

func checkSequence(sequence uint64) error {
	if sequence == 0 {
		return fmt.Errorf("%w: sequence: expected more than 0, found 0", ErrBad)
	}
	return nil
}

// plan applies a change to the stored value. next is nil if the change was stored before.
func (r *Ring) plan(k rendezvous.MemberKey, generation, sequence uint64, key string, op rendezvous.Operation) (
	term component.Term, next *rendezvous.Value, old []path, reply rendezvous.Change, err error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkLocked(k, generation); err != nil {
		return nil, nil, nil, reply, err
	}
	before, exists := r.values.byGeneration[generation][key]
	value, reply, isNew, err := before.Apply(k.Instance, sequence, op)
	if err != nil || !isNew {
		return nil, nil, nil, reply, err
	}
	if grows := len(value.Content) - len(before.Content); !exists && len(r.values.byGeneration[generation]) >= rendezvous.MaxValues || r.values.bytes+grows > rendezvous.MaxValueBytes {
		return nil, nil, nil, reply, fmt.Errorf("%w: expected at most %d keys of a generation and %d bytes of all values", rendezvous.ErrTooManyValues, rendezvous.MaxValues, rendezvous.MaxValueBytes)
	}
	return r.term, &value, r.values.obsolete(r.state.Ring.Number), reply, nil
}

// Values waits until all keys have values, and returns them; nil: some have none after the wait.
func (r *Ring) Values(ctx context.Context, k rendezvous.MemberKey, generation uint64, keys []string, wait time.Duration) ([][]byte, error) {
	if len(keys) < 1 || len(keys) > maxReadKeys {
		return nil, fmt.Errorf("%w: keys: expected 1 to %d, found %d", ErrBad, maxReadKeys, len(keys))
	}
	if wait < 0 || wait > maxValueWait {
		return nil, fmt.Errorf("%w: wait: expected at most %v, found %v", ErrBad, maxValueWait, wait)
	}
	for _, key := range keys {
		if err := rendezvous.CheckValueKey(key); err != nil {
			return nil, err
		}
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	for {
		found, changed, err := r.read(k, generation, keys)
		if err != nil || found != nil {
			return found, err
		}
		select {
		case <-changed:
		case <-limit.C:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (r *Ring) read(k rendezvous.MemberKey, generation uint64, keys []string) (found [][]byte, changed <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkLocked(k, generation); err != nil {
		return nil, nil, err
	}
	for _, key := range keys {
		v, ok := r.values.byGeneration[generation][key]
		if !ok || v.Absent {
			return nil, r.changed, nil
		}
		found = append(found, v.Content)
	}
	return found, nil, nil
}
