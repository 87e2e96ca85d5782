package main

import (
	"context"
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
)

// Operations on other devices' access.
const (
	opGrant  = "grant"
	opRevoke = "revoke"
)

// grantChunk is the size of a chunk that access is granted to: the smallest of
// most devices. The driver works for each chunk.
const grantChunk = 2 << 20

// grantGroup times granting access to n chunks of the owner, and revoking it.
func grantGroup(owner device, peers []device, n int) group {
	all := uint64(n) * grantChunk
	others := withoutRaw(peers)
	g := group{name: fmt.Sprintf("grant/%dx%s/peers-%d", n, size.Format(grantChunk), len(peers)), samples: math.MaxInt, maxLoops: 1}
	for _, op := range []string{opGrant, opRevoke} {
		g.tasks = append(g.tasks, task{
			label: op, sample: callTime,
			c: report.Case{
				ID: g.name + "/" + op, Unit: unitUs, Bytes: all,
				Axes: report.Axes{
					{Name: "owner", Value: owner.String()}, {Name: "chunks", Value: n},
					{Name: "peers", Value: len(peers)}, {Name: "op", Value: op},
				},
			},
			open: func(context.Context) (contender, error) {
				// As every contender, each operation has memory of its own.
				r, err := grownRange(owner, shape{size: all, chunk: grantChunk})
				if err != nil {
					return nil, err
				}
				do := func(w stopwatch) error { return grantAndRevoke(w, r, others) }
				return &operation{name: op, ready: func(context.Context) {}, undo: r.Close, pass: &pass{do: do}}, nil
			},
		})
	}
	if onHost(owner) {
		g.memory = all * uint64(len(g.tasks))
	}
	return g
}

// grantAndRevoke makes both calls, since each of them needs the other.
func grantAndRevoke(w stopwatch, r *vmm.Range, peers []*vmm.Device) error {
	if err := w.call(opGrant, func() error { return r.Grant(vmm.AccessReadWrite, peers...) }); err != nil {
		return err
	}
	return w.call(opRevoke, func() error { return r.Revoke(peers...) })
}
