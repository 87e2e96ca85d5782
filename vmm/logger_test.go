package vmm_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// asking is a slog.Handler that calls the device, as a program's own may.
type asking struct {
	slog.Handler
	d  *vmm.Device
	mu *sync.Mutex
}

func (a asking) Handle(ctx context.Context, r slog.Record) error {
	a.d.Stats()
	_, _ = a.d.Trim(0) // it may fail for the same reason
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Handler.Handle(ctx, r)
}

// closing is a slog.Handler that closes the range that it is told of, and the device.
type closing struct {
	slog.Handler
	close func()
}

func (c closing) Handle(context.Context, slog.Record) error {
	c.close()
	return nil
}

// TestLoggerClosesTheDevice: a handler may close what it is told of.
func TestLoggerClosesTheDevice(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	other := ranged(t, w, page)
	d.SetLimit(d.Stats().Committed)
	made, closed := make(chan *vmm.Range, 1), make(chan error, 1)
	var once sync.Once
	d.SetLogger(slog.New(closing{slog.NewTextHandler(io.Discard, nil), func() {
		once.Do(func() { closed <- errors.Join((<-made).Close(), other.Close(), d.Close()) })
	}}))
	made <- newRange(t, d, vmm.RangeOptions{Max: 256 * page, GrowAhead: 64 * page})
	returns(t, func() { require.NoError(t, <-closed) })
	w.end()
}

// TestLogger: what fails in the device's goroutine is logged, once.
func TestLogger(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *paced) {
		d := w.devs[0]
		var text bytes.Buffer
		var mu sync.Mutex
		d.SetLogger(slog.New(asking{slog.NewTextHandler(&text, nil), d, &mu}))
		lines := func(of string) int {
			mu.Lock()
			defer mu.Unlock()
			return strings.Count(text.String(), of)
		}
		g, s, open := queuedClip(t, w.world)
		w.refuse("Unmap", 5, errInjected)
		open()
		pass(2 * time.Second)
		require.Equal(t, 1, lines("error=\"Unmap: injected"), text.String())
		require.NoError(t, s.Close())

		d.SetLimit(d.Stats().Committed)
		ahead := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Chunk: page, GrowAhead: 4 * page})
		pass(2 * time.Second)
		require.Positive(t, d.Stats().GrowAheadFailures)
		require.Equal(t, 1, lines("grow ahead"), text.String())
		d.SetLogger(nil)
		d.SetLimit(0)
		require.NoError(t, ahead.Close())
		require.NoError(t, g.Close())
	})
}
