package collectivetest_test

import (
	"testing"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
)

// Three members in one process, each with a device on host memory, gather one element of each.
func ExampleGroups() {
	t := &testing.T{} // that of the test function

	gather := func(g *collective.Group) error {
		s, err := g.Device().NewStream()
		if err != nil {
			return err
		}
		defer s.Close()
		mine, err := growable.New[float32](g.Device(), growable.Options{MaxLen: 10})
		if err != nil {
			return err
		}
		defer mine.Close()
		all, err := growable.New[float32](g.Device(), growable.Options{MaxLen: 10})
		if err != nil {
			return err
		}
		defer all.Close()
		if err := mine.Append(float32(g.Rank())); err != nil {
			return err
		}
		if _, err := g.AllGather(t.Context(), s, all, mine); err != nil {
			return err
		}
		return g.Sync(t.Context(), s)
	}
	ended := make(chan error, 3)
	for _, g := range collectivetest.Groups(t, 3) {
		go func() { ended <- gather(g) }()
	}
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
