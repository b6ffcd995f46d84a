package etcdstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// Job is the value of /job, written once by the first master.
type Job struct {
	Name     string            `json:"name"`
	Settings map[string]string `json:"settings"`
	Digest   string            `json:"digest"` // SHA-256 of name and settings
}

func newJob(name string, settings map[string]string) Job {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q\n", name)
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(sum, "%q=%q\n", key, settings[key])
	}
	return Job{Name: name, Settings: settings, Digest: hex.EncodeToString(sum.Sum(nil))}
}

// EnsureJob writes /job if it is absent; else it compares. A setting that differs is refused by name with [store.ErrOtherJob].
// A setting that only one side names is not compared, so that a newer master can add a setting. It needs no lock: the value is
// immutable and the first writer wins.
func (s *Store) EnsureJob(ctx context.Context, name string, settings map[string]string) error {
	key := s.abs(keyJob)
	mine := newJob(name, settings)
	value, err := json.Marshal(mine)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	pause := backoff{least: 20 * time.Millisecond, most: time.Second}
	for {
		answer, err := s.txn(ctx, &pb.TxnRequest{
			Compare: []*pb.Compare{createdAt(key, 0)},
			Success: []*pb.RequestOp{opPut(key, value, 0)},
			Failure: []*pb.RequestOp{opGet(key)},
		})
		switch {
		case err == nil && answer.Succeeded:
			return nil
		case err == nil:
			return mine.compare(key, answer.Responses[0].GetResponseRange().Kvs[0].Value)
		case !errors.Is(err, taskqueue.ErrUnknownOutcome) || sleep(ctx, pause.next()) != nil:
			return fmt.Errorf("write %s: %w", key, err)
		}
	}
}

func (j Job) compare(key string, stored []byte) error {
	var found Job
	if err := json.Unmarshal(stored, &found); err != nil {
		return fmt.Errorf("%w: %s: want JSON {name, settings, digest}, found %.80q: %w; use another --job", errDamaged, key, stored, err)
	}
	if sound := newJob(found.Name, found.Settings); sound.Digest != found.Digest {
		return fmt.Errorf("%w: %s: its digest is %.12s, its settings give %.12s: the value was edited: restore it, or use another --job", errDamaged, key, found.Digest, sound.Digest)
	}
	var differs []string
	if found.Name != j.Name {
		differs = append(differs, fmt.Sprintf("job is %q there and %q here", found.Name, j.Name))
	}
	for _, setting := range slices.Sorted(maps.Keys(j.Settings)) {
		//guard:settings-compared
		if there, named := found.Settings[setting]; named && there != j.Settings[setting] {
			differs = append(differs, fmt.Sprintf("%s was %q at the beginning and is %q here", setting, there, j.Settings[setting]))
		}
	}
	//guard:removed-modes-refused
	if mode := removedMode(found.Settings); mode != "" && len(differs) > 0 {
		return fmt.Errorf("%w: %s began as %s, which is not supported anymore: begin another job with --job", store.ErrOtherJob, key, mode)
	}
	if len(differs) > 0 {
		return fmt.Errorf("%w: expected the settings of the job, found others: %s (by %s); start with the same settings, or begin another job with --job", store.ErrOtherJob, strings.Join(differs, ", "), key)
	}
	return nil
}

// removedMode names the mode of a stored job that no master supports anymore; "": there is none.
func removedMode(settings map[string]string) string {
	isSync, rollsBack := settings["update-mode"] == "sync", strings.HasPrefix(settings["commit-mode"], "cuts")
	switch {
	case isSync && !rollsBack:
		return "a synchronous job without rollbacks (--on-shard-loss continue)"
	case !isSync && rollsBack:
		return "an asynchronous job with rollbacks (--on-shard-loss rewind)"
	}
	return ""
}
