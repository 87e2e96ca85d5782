package main

import (
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"iter"
	"net"
	"net/http"
	"slices"
	"sort"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// table is rows that can be searched: the owner's growable.Rows, or a follower's
// growable.RowsReader.
type table interface {
	Width() int
	Blocks(buf []float32) iter.Seq2[[]float32, error]
}

type store interface {
	use(func(table) error) error // the table stays open until the function returns
	stats() any
}

type query struct {
	Vector []float32 `json:"vector"`
	K      int       `json:"k"`
}

type result struct {
	Rows    int   `json:"rows"` // how many were compared
	Nearest []hit `json:"nearest"`
}

type hit struct {
	Row      int     `json:"row"`
	Distance float64 `json:"distance"` // squared
}

const (
	maxBody = 64 << 20
	maxK    = 1000
)

var errRequest = errors.New("bad request")

func wrongWidth(v []float32, t table) error {
	return fmt.Errorf("%w: a vector of %d floats, not %d", errRequest, len(v), t.Width())
}

// handler serves what owner and followers have in common.
func handler(s store) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /nearest", post(func(_ context.Context, q query) (out any, err error) {
		err = s.use(func(t table) error { out, err = nearest(t, q); return err })
		return out, err
	}))
	stats := expvar.Func(s.stats)
	expvar.Publish("topk", stats)
	mux.Handle("GET /debug/vars", expvar.Handler())
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintln(w, stats)
	})
	return mux
}

// nearest compares the query with every row. It copies the rows to the Go heap block by
// block, also from a GPU: a kernel would leave them there.
func nearest(t table, q query) (r result, err error) {
	if len(q.Vector) != t.Width() {
		return r, wrongWidth(q.Vector, t)
	}
	if q.K < 1 || q.K > maxK {
		return r, fmt.Errorf("%w: k is %d, not between 1 and %d", errRequest, q.K, maxK)
	}
	r.Nearest = make([]hit, 0, q.K+1)
	for block, err := range t.Blocks(nil) {
		if err != nil {
			return r, err
		}
		for row := range slices.Chunk(block, t.Width()) {
			h := hit{r.Rows, distance(q.Vector, row)}
			i := sort.Search(len(r.Nearest), func(i int) bool { return r.Nearest[i].Distance > h.Distance })
			r.Nearest = slices.Insert(r.Nearest, i, h)
			r.Nearest = r.Nearest[:min(q.K, len(r.Nearest))]
			r.Rows++
		}
	}
	return r, nil
}

func distance(a, b []float32) (sum float64) {
	for i := range a {
		d := float64(a[i]) - float64(b[i])
		sum += d * d
	}
	return sum
}

// post serves JSON in, JSON out.
func post[In any](f func(context.Context, In) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out, err := f(r.Context(), in)
		if err != nil {
			http.Error(w, err.Error(), status(err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	}
}

func status(err error) int {
	switch {
	case errors.Is(err, errRequest):
		return http.StatusBadRequest
	case errors.Is(err, vmm.ErrFull), errors.Is(err, vmm.ErrOutOfMemory):
		return http.StatusInsufficientStorage
	case noOwner(err):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// serve serves HTTP until ctx ends, and then what has begun.
func serve(ctx context.Context, addr string, h http.Handler) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("serving http://%v\n", l.Addr())
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return server.Shutdown(limit)
}
