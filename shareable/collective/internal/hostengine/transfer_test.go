package hostengine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
)

// pattern is n bytes that belong to a rank.
func pattern(rank, n int) []byte { return bytes.Repeat([]byte{byte(1 + rank)}, n) }

// TestBroadcastsAndGathers: broadcasts from each root and gathers, beside each other and in place.
func TestBroadcastsAndGathers(t *testing.T) {
	const n = 1000
	for size := 1; size <= 5; size++ {
		ranks := group(t, size, Options{})
		for root := range size {
			together(ranks, func(r *rank) {
				r.put(0, pattern(r.rank, n))
				r.put(8192, pattern(r.rank, n))
				inPlace := uint64(16384 + r.rank*n)
				r.put(inPlace, pattern(r.rank, n))
				src := uint64(0)
				if r.rank != root {
					src = 4096 // as collective does: its own dst
				}
				if err := r.queue(nccl.Call{Operation: nccl.Broadcast, Kind: nccl.Uint8, Peer: root, Src: src, Dst: 4096, Count: n},
					nccl.Call{Operation: nccl.Broadcast, Kind: nccl.Uint8, Peer: root, Src: 8192, Dst: 8192, Count: n},
					nccl.Call{Operation: nccl.AllGather, Kind: nccl.Uint8, Src: 0, Dst: 32768, Count: n},
					nccl.Call{Operation: nccl.AllGather, Kind: nccl.Uint8, Src: inPlace, Dst: 16384, Count: n}); err != nil {
					t.Errorf("rank %d: %v", r.rank, err)
				}
				if err := r.sync(); err != nil {
					t.Errorf("rank %d: %v", r.rank, err)
				}
			})
			for _, r := range ranks {
				require.Equal(t, pattern(root, n), r.get(4096, n))
				require.Equal(t, pattern(root, n), r.get(8192, n))
				for i := range size {
					require.Equal(t, pattern(i, n), r.get(uint64(32768+i*n), n))
					require.Equal(t, pattern(i, n), r.get(uint64(16384+i*n), n))
				}
			}
		}
		end(t, ranks)
	}
}

// TestSendAndRecv: groups of them between all members and themselves, each in an
// order of its own.
func TestSendAndRecv(t *testing.T) {
	const size, n = 5, 64
	ranks := group(t, size, Options{})
	for round := range 20 {
		together(ranks, func(r *rank) {
			random := rand.New(rand.NewPCG(uint64(round), uint64(r.rank)))
			var calls []nccl.Call
			for peer := range size {
				r.put(uint64(peer*n), bytes.Repeat([]byte{byte(16*r.rank + peer + round)}, n))
				r.put(uint64(4096+peer*n), make([]byte, n))
				calls = append(calls,
					nccl.Call{Operation: nccl.Send, Kind: nccl.Uint8, Peer: peer, Src: uint64(peer * n), Count: n},
					nccl.Call{Operation: nccl.Recv, Kind: nccl.Uint8, Peer: peer, Dst: uint64(4096 + peer*n), Count: n})
			}
			random.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
			if err := r.queue(calls...); err != nil {
				t.Errorf("rank %d: %v", r.rank, err)
			}
			if err := r.sync(); err != nil {
				t.Errorf("rank %d: %v", r.rank, err)
			}
		})
		for _, r := range ranks {
			for peer := range size {
				require.Equal(t, bytes.Repeat([]byte{byte(16*peer + r.rank + round)}, n), r.get(uint64(4096+peer*n), n))
			}
		}
	}
	end(t, ranks)
}

// TestSendAndRecvNeedOnlyTheirMembers: others need not call anything, and messages arrive in the
// order in which they were sent.
func TestSendAndRecvNeedOnlyTheirMembers(t *testing.T) {
	ranks := group(t, 3, Options{})
	for i := range 3 {
		ranks[0].put(uint64(i), []byte{byte(10 + i)})
		require.NoError(t, ranks[0].queue(nccl.Call{Operation: nccl.Send, Kind: nccl.Uint8, Peer: 2, Src: uint64(i), Count: 1}))
	}
	for i := range 3 {
		require.NoError(t, ranks[2].queue(nccl.Call{Operation: nccl.Recv, Kind: nccl.Uint8, Peer: 0, Dst: uint64(100 + i), Count: 1}))
	}
	require.NoError(t, ranks[0].sync())
	require.NoError(t, ranks[2].sync())
	require.Equal(t, []byte{10, 11, 12}, ranks[2].get(100, 3))
	end(t, ranks)
}

// TestNothingToDo: of no elements, collective operations wait for no one, and messages match.
func TestNothingToDo(t *testing.T) {
	ranks := group(t, 2, Options{})
	for op := nccl.AllReduce; op <= nccl.ReduceScatter; op++ {
		require.NoError(t, ranks[0].queue(nccl.Call{Operation: op, Kind: nccl.Float32}))
		require.NoError(t, ranks[0].sync(), op)
	}
	require.NoError(t, ranks[0].queue())
	require.NoError(t, ranks[0].sync())
	require.NoError(t, ranks[0].queue(nccl.Call{Operation: nccl.Send, Kind: nccl.Float32, Peer: 1}))
	require.NoError(t, ranks[1].queue(nccl.Call{Operation: nccl.Recv, Kind: nccl.Float32, Peer: 0}))
	require.NoError(t, ranks[0].sync())
	require.NoError(t, ranks[1].sync())
	end(t, ranks)
}

// TestStreamsOfOneMember: what a member queues runs in that order, on whatever streams.
func TestStreamsOfOneMember(t *testing.T) {
	ranks := group(t, 2, Options{})
	for round := range 20 {
		together(ranks, func(r *rank) {
			other, err := r.dev.NewStream()
			if err != nil {
				t.Error(err)
				return
			}
			own := r.st
			r.put(0, []byte{byte(round), 1})
			for i := range 8 {
				if r.st = own; (i+r.rank)%2 == 0 {
					r.st = other
				}
				c := nccl.Call{Operation: nccl.AllReduce, Kind: nccl.Uint8, Src: uint64(i), Dst: uint64(i + 1), Count: 1}
				if err := r.queue(c); err != nil {
					t.Errorf("rank %d: %v", r.rank, err)
				}
			}
			for _, r.st = range []*vmm.Stream{other, own} {
				if err := r.sync(); err != nil {
					t.Errorf("rank %d: %v", r.rank, err)
				}
			}
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		})
		for _, r := range ranks {
			want := make([]byte, 9)
			want[0] = byte(round)
			for i := range 8 {
				want[i+1] = want[i] * 2
			}
			require.Equal(t, want, r.get(0, 9), fmt.Sprint(round))
		}
	}
	end(t, ranks)
}
