package admin

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
	"trainmaster/ledger/verify"
)

// parseRecord reads FILE:N.
func parseRecord(text string) (path string, n int64, err error) {
	at := strings.LastIndexByte(text, ':')
	if at > 0 {
		n, err = strconv.ParseInt(text[at+1:], 10, 64)
	}
	if at <= 0 || err != nil || n < 0 {
		return "", 0, cli.UsageErrorf("--of-record %q: expected FILE:N, a file of the dataset and the number of a record in it, from 0", text)
	}
	return text[:at], n, nil
}

// TraceRecord finds the task of a record, and its dispatches in the ledger of the job.
func TraceRecord(ctx context.Context, store *etcdstore.Store, from Location, dir, what string) (verify.Trace, error) {
	path, n, err := parseRecord(what)
	if err != nil {
		return verify.Trace{}, err
	}
	queue, _, err := ReadQueue(ctx, store, from)
	if err != nil {
		return verify.Trace{}, err
	}
	trace, err := verify.FindRecord(queue, path, n)
	if err != nil {
		return trace, cli.UsageErrorf("--of-record: %w", err)
	}
	reader, state, err := OpenLedger(ctx, store, from, dir)
	if err != nil {
		return trace, err
	}
	err = trace.Read(ctx, queue, reader, state)
	if errors.Is(err, verify.ErrNoEntries) {
		err = NoLedger(store, from)
	}
	return trace, err
}
