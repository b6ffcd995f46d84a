package dataset

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// forEach calls work(0) to work(n-1) from several goroutines, waits for them, and returns their errors by index. It
// calls progress, if there is one, from one goroutine at a time with the number of calls that are done. When ctx ends no
// further call begins and the error is that of ctx.
func forEach(ctx context.Context, n, parallel int, progress func(done, total int), work func(i int) error) ([]error, error) {
	if parallel <= 0 {
		parallel = 4 * runtime.GOMAXPROCS(0) // files may be on a network, where waiting is most of the work
	}
	var (
		errs = make([]error, n)
		next atomic.Int64
		wg   sync.WaitGroup
		mu   sync.Mutex
		done int // guarded by mu
	)
	for range min(parallel, n) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				errs[i] = work(i)
				if progress != nil {
					mu.Lock()
					done++
					progress(done, n)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return errs, context.Cause(ctx)
}

// parallelObjects is how many objects are read together: a store answers after a round trip, and takes many requests at a time.
const parallelObjects = 16
