//go:build cgo && linux

package collective

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestGraphs: a call on a stream that is captured becomes part of the graph, which runs it as often
// as it is launched.
func TestGraphs(t *testing.T) {
	needsTwo(t)
	playAll(t, "graphs", time.Minute)
}

func playGraphs(m *process) error {
	g, err := Join(m.ctx, m.dev, Options{Timeout: time.Minute})
	if err != nil {
		return err
	}
	st, err := m.dev.NewStream()
	if err != nil {
		return err
	}
	v, err := grown(m.dev, 16<<20)
	if err != nil {
		return err
	}
	if err := errors.Join(st.Fill(v.Ptr(), 1, 4, v.Len()/4), st.Sync(), st.BeginCapture()); err != nil {
		return err
	}
	if err := g.Do(m.ctx, st, AllReduce(v, v, Uint32, Sum)); err != nil {
		return err
	}
	graph, err := st.EndCapture()
	if err != nil {
		return err
	}
	exec, err := graph.Instantiate()
	if err != nil {
		return err
	}
	const launches = 5
	for range launches {
		if err := exec.Launch(st); err != nil {
			return err
		}
	}
	if err := g.Sync(m.ctx, st); err != nil {
		return err
	}
	b := make([]byte, v.Len())
	if _, err := v.ReadAt(b, 0); err != nil {
		return err
	}
	for i := 0; i < len(b); i += 4 { // doubled by each launch
		if b[i] != 1<<launches || b[i+1] != 0 {
			return fmt.Errorf("element %d is %v", i/4, b[i:i+4])
		}
	}
	return errors.Join(exec.Close(), graph.Close(), g.Close(), v.Close(), st.Close())
}
