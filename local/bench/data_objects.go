package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"trainmaster/dataset"
	"trainmaster/internal/tcpproxy"
	"trainmaster/recordio"
)

// StoreRows has the speeds of reading objects.
type StoreRows struct {
	Objects       int     `json:"objects"`
	Bytes         int64   `json:"bytes"`
	DelayMS       float64 `json:"delay_ms"`
	GBPerS        float64 `json:"gb_per_s"` // of stored bytes
	DelayedGBPerS float64 `json:"delayed_gb_per_s"`
	Ratio         float64 `json:"ratio"`
}

// endpoint returns the host and port of an object store with plain HTTP, which a proxy can delay.
func endpoint(store string) (string, error) {
	u, err := url.Parse(store)
	if err == nil {
		var e *url.URL
		if e, err = url.Parse(u.Query().Get("endpoint")); err == nil && e.Scheme == "http" && e.Port() != "" {
			return e.Host, nil
		}
	}
	return "", fmt.Errorf("store: expected a URL with endpoint=http://host:port, so that its connections can be delayed, found %q", store)
}

// store reads the objects with and without a delay, in turns.
func (b *Data) store(ctx context.Context) (*StoreRows, error) {
	target, err := endpoint(b.Store)
	if err != nil {
		return nil, err
	}
	rows := &StoreRows{DelayMS: millis(b.StoreDelay)}
	var sides [2]*objects
	for i, delay := range []time.Duration{0, b.StoreDelay} { // both through a proxy, so that they differ in the delay alone
		through, err := tcpproxy.New(target)
		if err != nil {
			return nil, err
		}
		defer through.Close()
		through.Delay(delay, 0)
		name := strings.Replace(b.Store, url.QueryEscape(target), url.QueryEscape(through.Addr()), 1)
		if sides[i], err = listObjects(ctx, strings.Replace(name, target, through.Addr(), 1)); err != nil {
			return nil, err
		}
		defer sides[i].stores.Close()
	}
	var times [2][]time.Duration
	for run := range b.Runs + 1 {
		for i, side := range sides {
			start := time.Now()
			if err := side.read(); err != nil {
				return nil, err
			}
			if run > 0 {
				times[i] = append(times[i], time.Since(start))
			}
		}
	}
	rows.Objects = len(sides[0].listing.Files)
	for _, f := range sides[0].listing.Files {
		rows.Bytes += f.Size
	}
	gb := float64(rows.Bytes) / 1e9
	rows.GBPerS = gb / median(times[0], time.Duration.Seconds)
	rows.DelayedGBPerS = gb / median(times[1], time.Duration.Seconds)
	rows.Ratio = rows.DelayedGBPerS / rows.GBPerS
	return rows, nil
}

// objects are objects with their index, as tasks have them.
type objects struct {
	ctx     context.Context //nolint:containedctx // of one measurement
	stores  *dataset.Stores
	listing dataset.Listing
	index   [][]recordio.Index
}

func listObjects(ctx context.Context, name string) (*objects, error) {
	o := &objects{ctx: ctx, stores: new(dataset.Stores)}
	var err error
	if o.listing, err = (dataset.Source{AnyURL: true, Stores: o.stores}).List(ctx, []string{name}); err != nil {
		return nil, errors.Join(err, o.stores.Close())
	}
	indexer := dataset.Indexer{Stores: o.stores}
	if o.index, err = indexer.Index(ctx, o.listing); err != nil {
		return nil, errors.Join(err, o.stores.Close())
	}
	return o, nil
}

// read reads the chunks of one object after the other. As in a trainer, the next object is opened before the records of the previous object are read.
func (o *objects) read() error {
	next, err := o.open(0)
	for i := 0; err == nil && next != nil; i++ {
		file := next
		next, err = o.open(i + 1)
		for _, ix := range o.index[i] {
			for _, failed := range file.Chunk(ix) {
				err = errors.Join(err, failed)
			}
			if err != nil {
				break
			}
		}
		err = errors.Join(err, file.Close())
	}
	if next != nil {
		err = errors.Join(err, next.Close())
	}
	return err
}

// open returns nil after the last object.
func (o *objects) open(i int) (*dataset.Reader, error) {
	if i == len(o.index) {
		return nil, nil //nolint:nilnil // the end
	}
	f := o.listing.Files[i]
	file, err := o.stores.OpenReaderAs(o.ctx, f.Path, o.index[i][0].Layout, f.Stamp())
	if err != nil {
		return nil, err
	}
	for _, ix := range o.index[i] {
		file.Expect(ix)
	}
	return file, nil
}
