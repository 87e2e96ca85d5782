package collective_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/vmm"
)

// One process of a group that torchrun, mpirun or srun has started, each with a GPU. It has one part
// of a vector, and gets those of all members. Package collectivetest has an example that needs no GPU.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	ctx := context.Background()
	env, err := collective.FromEnvironment()
	check(err)
	dev, err := vmm.Open(fmt.Sprintf("cuda:%d", env.LocalRank))
	check(err)
	g, err := collective.Join(ctx, dev, collective.Options{Timeout: time.Minute})
	check(err)
	s, err := dev.NewStream()
	check(err)

	mine, err := growable.New[float32](dev, growable.Options{MaxLen: 1 << 20})
	check(err)
	check(mine.Append(float32(g.Rank())))
	all, err := growable.New[float32](dev, growable.Options{MaxLen: 1 << 20})
	check(err)
	_, err = g.AllGather(ctx, s, all, mine) // all grows by the parts, in the order of ranks
	check(err)
	check(g.Sync(ctx, s))

	check(all.Close())
	check(mine.Close())
	check(s.Close())
	check(g.Close())
	check(dev.Close())
}
