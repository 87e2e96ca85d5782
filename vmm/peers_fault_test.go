package vmm_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// subject is memory whose access is set: ranges, or a reservation with holes.
type subject struct {
	w      *world
	ranges []*vmm.Range
	holes  *vmm.Reservation
	chunk  *vmm.Chunk
	chunks int
}

// more adds a chunk, after a hole every third time where there can be one.
func (s *subject) more(t *testing.T) {
	t.Helper()
	for _, g := range s.ranges {
		require.NoError(t, g.Grow(g.Cap()-g.Len()+4096))
	}
	if s.holes != nil {
		at := uint64(s.chunks+s.chunks/3) * 4096
		require.NoError(t, s.holes.Map(at, s.chunk))
	}
	s.chunks++
}

// set sets the access of devs to all of it.
func (s *subject) set(a vmm.Access, devs ...*vmm.Device) error {
	switch {
	case s.holes == nil:
		return vmm.EnablePeers(a, devs, memory(s.ranges...)...)
	case a == vmm.AccessNone:
		return s.holes.Revoke(devs...)
	}
	return s.holes.Grant(a, devs...)
}

// access is what each device may do with each chunk, by the driver.
func (s *subject) access(t *testing.T) (all []vmm.Access) {
	t.Helper()
	var segments []vmm.Segment
	for _, g := range s.ranges {
		segments = append(segments, g.Segments()...)
	}
	segments = append(segments, s.holes.Segments()...)
	for _, x := range segments {
		for i := range s.w.devs {
			a, err := s.w.drv.Access(x.Addr, vmm.Location{Kind: vmm.LocationDevice, ID: i})
			require.NoError(t, err)
			all = append(all, a)
		}
	}
	return all
}

// subjects makes both kinds on the first device of a world with n peers.
func subjects(t *testing.T, n int) map[string]func() *subject {
	make := func() *world {
		return worldOn(t, n+1, host.Config{Devices: n + 1, Memory: 64 * mib, Granularity: 4096})
	}
	return map[string]func() *subject{
		"ranges": func() *subject {
			w := make()
			return &subject{w: w, ranges: []*vmm.Range{rangeOn(t, w, 0, 0), rangeOn(t, w, 0, 0)}}
		},
		"holes": func() *subject {
			w := make()
			r, err := w.devs[0].Reserve(200*4096, vmm.ReserveOptions{})
			require.NoError(t, err)
			c, err := w.devs[0].Create(4096, vmm.Prop{})
			require.NoError(t, err)
			return &subject{w: w, holes: r, chunk: c}
		},
	}
}

// end closes everything and checks that nothing is left.
func (s *subject) end(t *testing.T) {
	t.Helper()
	closeAll(t, s.ranges...)
	require.NoError(t, s.holes.Close())
	require.NoError(t, s.chunk.Close())
	s.w.end()
}

// step is one change of access in the life of a grant.
type step struct {
	name string
	set  vmm.Access
	devs func(peers []*vmm.Device) []*vmm.Device
}

func steps() []step {
	all := func(peers []*vmm.Device) []*vmm.Device { return peers }
	return []step{
		{"enable", vmm.AccessRead, func(peers []*vmm.Device) []*vmm.Device { return peers[:1] }},
		{"add", vmm.AccessReadWrite, all},
		{"narrow", vmm.AccessRead, func(peers []*vmm.Device) []*vmm.Device { return peers[len(peers)-1:] }},
		{"revoke", vmm.AccessNone, all},
	}
}

// peerChunks is how many chunks there are when faults are injected.
func peerChunks(c int) bool {
	return c <= 8 || c%16 == 0 || c == 100 || testgate.Soak()
}

// TestPeerFaultAtEveryCall fails each call of enabling, adding, narrowing and revoking, for
// 1 to 4 peers and 1 to 100 chunks: all access is as before, also for later chunks, and
// then the same works.
func TestPeerFaultAtEveryCall(t *testing.T) {
	for n := 1; n <= testgate.Effort(2, 4, 4); n++ {
		for kind, made := range subjects(t, n) {
			t.Run(fmt.Sprintf("peers=%d/%s", n, kind), func(t *testing.T) {
				s := made()
				peers := s.w.devs[1:]
				for s.chunks < 100 {
					s.more(t)
					if !peerChunks(s.chunks) {
						continue
					}
					for _, st := range steps() {
						before := s.access(t)
						for i := 1; ; i++ {
							s.w.arm(i)
							err := s.set(st.set, st.devs(peers)...)
							made := len(s.w.disarm())
							if err == nil {
								require.Less(t, made, i, "a fault that was not reported")
								break
							}
							note := fmt.Sprintf("%s, %d chunks, call %d: %v", st.name, s.chunks, i, err)
							isInjected(s.w, err)
							require.Equal(t, before, s.access(t), note)
							require.Zero(t, s.w.devs[0].Stats().Quarantined, note)
						}
						after := s.access(t)
						require.NotEqual(t, before, after)
						for i := range s.w.devs { // no chunk differs from the first
							for k := i; k < len(after); k += len(s.w.devs) {
								require.Equal(t, after[i], after[k])
							}
						}
					}
				}
				s.end(t)
			})
		}
	}
}

// TestPeerFaultTwice fails a call and one that undoes it: what could not be undone is
// counted, the next try mends it or returns why not, and nothing is left.
func TestPeerFaultTwice(t *testing.T) {
	for _, n := range []int{1, 3} {
		for kind, made := range subjects(t, n) {
			for _, chunks := range []int{1, 7} {
				t.Run(fmt.Sprintf("peers=%d/%s/chunks=%d", n, kind, chunks), func(t *testing.T) {
					for at := range steps() {
						for i := 1; ; i++ {
							calls := i + 1
							for k := i + 1; k <= calls; k++ {
								calls = twice(t, made(), chunks, at, i, k)
							}
							if calls < i {
								break
							}
						}
					}
				})
			}
		}
	}
}

// twice brings a subject to step at, fails calls i and k there, and returns how many calls
// there were.
func twice(t *testing.T, s *subject, chunks, at, i, k int) (calls int) {
	t.Helper()
	for range chunks {
		s.more(t)
	}
	peers := s.w.devs[1:]
	for _, st := range steps()[:at] {
		require.NoError(t, s.set(st.set, st.devs(peers)...))
	}
	st := steps()[at]
	before := s.access(t)
	s.w.arm(i, k)
	err := s.set(st.set, st.devs(peers)...)
	made := s.w.disarm()
	note := fmt.Sprintf("%s, calls %d and %d of %v: %v", st.name, i, k, made, err)
	if err != nil {
		isInjected(s.w, err)
		if s.w.devs[0].Stats().Quarantined == 0 && s.holes != nil { // if it has ranges, one may keep its recorded grant, too
			require.Equal(t, before, s.access(t), note)
		}
		require.NoError(t, s.set(st.set, st.devs(peers)...), note)
		require.Zero(t, s.w.devs[0].Stats().Quarantined, "healed: "+note)
		after := s.access(t)
		for d := range s.w.devs {
			for j := d; j < len(after); j += len(s.w.devs) {
				require.Equal(t, after[d], after[j], note)
			}
		}
	}
	s.end(t)
	return len(made)
}
