package main

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

func TestP2P(t *testing.T) {
	code, out, progress := bench(t, "p2p", "--device", "host:0,host:1,host:2", "--size", "4,64K", "--grants", "1,3",
		"--samples", "10", "--min-time", "50us", "--format", "json")
	require.Equal(t, report.ExitPassed, code, progress)
	r := parse(t, out)
	require.Len(t, r.Devices, 3)
	require.InDelta(t, 0.01, r.Run.Measure.Margin, 1e-12)
	const pairs, kinds, ways = 6, 3, 2 + 3 // latency one way, bandwidth both ways too
	require.Len(t, r.Cases, pairs*kinds*ways+2*2*2)
	require.Len(t, r.Comparisons, pairs*ways*2)
	for _, c := range r.Comparisons {
		require.Contains(t, c.ID, ": vmm against ")
		if strings.HasSuffix(c.ID, "vmm against none") && strings.Contains(c.ID, "/4B/") {
			require.Nil(t, c.Ratio, "one side has a gate and the other cannot")
			require.Equal(t, stat.NotMeasured, c.Verdict)
			continue
		}
		require.NotNil(t, c.Ratio, c.ID)
	}
	for _, c := range r.Cases {
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
		require.Len(t, c.Samples, 10)
		require.Positive(t, c.Stats.Value, c.ID)
		if op, ok := c.Axes["op"]; ok {
			require.Contains(t, []any{"grant", "revoke"}, op)
			require.Equal(t, "us", c.Unit)
			continue
		}
		require.NotEqual(t, c.Axes["from"], c.Axes["to"])
		require.Equal(t, c.Bytes, c.Verify.Bytes, "%s: every byte", c.ID)
		n := uint64(c.Axes["size"].(float64))
		switch {
		case n == 4:
			require.Equal(t, "us", c.Unit)
			require.NotEqual(t, "both", c.Axes["direction"])
		case c.Axes["direction"] == "both":
			require.Equal(t, 2*n, c.Bytes)
			require.Positive(t, c.Stats.Forward)
			require.Positive(t, c.Stats.Reverse)
		default:
			require.Equal(t, "GB/s", c.Unit)
			require.Equal(t, n, c.Bytes)
		}
	}
}

func TestP2PAsTableHasMatrices(t *testing.T) {
	code, out, _ := bench(t, "p2p", "--device", "host", "--size", "64K", "--direction", "write", "--grants", "0",
		"--samples", "1", "--progress", "off")
	require.Equal(t, report.ExitPassed, code)
	for _, kind := range []string{"none", "enable", "vmm"} {
		require.Regexp(t, "write 64KiB "+kind+`, GB/s.*\n from \\ to  host:0`, out)
	}
}

func TestP2PDevices(t *testing.T) {
	for _, c := range []struct {
		device string
		code   int
		want   string
	}{
		{"host", report.ExitPassed, "p2p/write/1MiB/host:0-host:1/none"},
		{"host:3,host:1", report.ExitPassed, "p2p/read/1MiB/host:1-host:3/vmm"},
		{"host:1", report.ExitPassed, "p2p/pairs"},
		{"host:1,host:1", report.ExitUsage, "named twice"},
		{"host,host:0", report.ExitUsage, "named twice"},
		{"host:1,gpu", report.ExitUsage, "gpu"},
		{"host:1,host:99", report.ExitWaived, "host:99"},
	} {
		code, out, stderr := bench(t, "p2p", "--device", c.device, "--size", "1M", "--dry-run")
		require.Equal(t, c.code, code, c.device)
		require.Contains(t, out+stderr, c.want, c.device)
	}
	for _, args := range [][]string{{"--size", "4", "--direction", "both", "--grants", "0"}, {"--grants", "-1"}, {"--size", "0"}, {"--mem", "plain"}} {
		code, out, _ := bench(t, append([]string{"p2p", "--device", "host"}, args...)...)
		require.Equal(t, report.ExitUsage, code, args)
		require.Empty(t, out)
	}

	code, out, _ := bench(t, "p2p", "--device", "host:1", "--format", "json")
	require.Equal(t, report.ExitWaived, code)
	require.Contains(t, string(parse(t, out).Cases[0].Reason), "a pair takes two")
}

func TestP2PFindsAWrongByte(t *testing.T) { byHostAndDevice(t, p2pFindsAWrongByte) }

func p2pFindsAWrongByte(t *testing.T, set *settings) {
	args := []string{"p2p", "--device", "host", "--engine", "ce,sm", "--size", "64K", "--grants", "0", "--samples", "1", "--progress", "off", "--format", "json"}
	code, out, _ := benchWith(t, set, append(args, "--corrupt", "32769")...)
	require.Equal(t, report.ExitMismatch, code)
	r := parse(t, out)
	require.Len(t, r.Cases, 2*3*(3+2))
	for _, c := range r.Cases {
		require.Equal(t, report.Failed, c.Status, c.ID)
		require.Equal(t, uint64(32769), c.Verify.FirstBad.Offset)
	}
}

// p2pOn measures a short plan on two devices of a driver.
func p2pOn(t *testing.T, drv driver.Driver, mems ...string) *runner {
	t.Helper()
	a, b := openDriver(t, drv, 0), openDriver(t, drv, 1)
	p := newP2PPlan()
	p.sizes, p.grants = size.List{64 << 10}, []int{2}
	p.mems.values = mems
	s := newRunner()
	groups, err := p.groups([]device{a, b}, 1)
	require.NoError(t, err)
	s.measureGroups(t.Context(), groups)
	require.NoError(t, b.Close(), "nothing may be left open")
	require.NoError(t, a.Close(), "nothing may be left open")
	return s
}

// Peer access is on while enable copies, and only then.
func TestP2PSwitchesPeerAccess(t *testing.T) {
	for kind, want := range map[string]int{noPeer: 0, legacyPeer: 2, memVMM: 0} {
		var mu sync.Mutex
		on, copies := 0, 0
		var wrong []int
		drv := drivertest.Inject(host.New(host.Config{Devices: 2, Memory: 1 << 30}), func(c drivertest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			switch c.Name {
			case "EnablePeer":
				on++
			case "DisablePeer":
				on--
			case "Copy":
				if copies++; on != want {
					wrong = append(wrong, on)
				}
			}
			return nil
		})
		s := p2pOn(t, drv, kind)
		require.Equal(t, map[report.Status]int{report.Passed: len(s.report.Cases)}, s.report.Count(), kind)
		require.NotZero(t, copies)
		require.Empty(t, wrong, kind)
		require.Zero(t, on, "%s: and it is never left on", kind)
		require.NoError(t, drv.Balanced())
	}
}

// Where another library has peer access on, there is nothing to be said of
// copies without it.
func TestP2PWithPeerAccessOfOthers(t *testing.T) {
	drv := host.New(host.Config{Devices: 2, Memory: 1 << 30})
	raw, err := drv.Open(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, raw.Close()) }()
	theirs := raw.(driver.LegacyPeers)
	require.NoError(t, theirs.EnablePeer(1))
	s := p2pOn(t, drv, noPeer, legacyPeer, memVMM)
	for _, c := range s.report.Cases {
		want := report.Passed
		if kind := c.Axes.Of("mem"); c.Axes.Of("from") == "host:0" && (kind == noPeer || kind == memVMM) {
			want = report.Error
			require.Contains(t, string(c.Reason), "by other code")
		}
		require.Equal(t, want, c.Status, "%s: %s", c.ID, c.Reason)
	}
	require.NoError(t, theirs.DisablePeer(1), "it is still theirs")
}

func TestP2PWithoutAPath(t *testing.T) {
	s := p2pOn(t, host.New(host.Config{Devices: 2, Memory: 1 << 30, NoPeer: [][2]int{{0, 1}}}), noPeer, legacyPeer, memVMM)
	waived := 0
	for _, c := range s.report.Cases {
		if c.Status == report.Waived {
			waived++
			require.NotEqual(t, noPeer, c.Axes.Of("mem"))
			require.NotEmpty(t, c.Reason)
			continue
		}
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
	}
	require.NotZero(t, waived)
	for _, c := range s.report.Comparisons {
		if strings.Contains(c.ID, "host:0-host:1") {
			require.Nil(t, c.Ratio)
			require.NotEmpty(t, c.Reason)
		}
	}
}

// Whichever call fails, all that was taken goes back, peer access too.
func TestP2PThatFailsGivesBack(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, call := range []string{"AllocPlain", "Create", "Map", "SetAccess", "CopyIn", "Fill", "NewStream", "NewEvent", "EnablePeer", "DisablePeer", "Copy", "CopyOut"} {
		for _, n := range testgate.Effort([]int{1, 3}, []int{1, 2, 3, 5}, []int{1, 2, 3, 5}) {
			var hook func(drivertest.Call) error
			drv := drivertest.Inject(host.New(host.Config{Devices: 2, Memory: 1 << 30}), func(c drivertest.Call) error {
				if hook == nil || slices.Contains([]string{"Unmap", "Release"}, c.Name) {
					return nil
				}
				return hook(c)
			})
			hook = drivertest.FailNth(call, n, broken)
			s := p2pOn(t, drv, noPeer, legacyPeer, memVMM)
			require.NotZero(t, s.report.Count()[report.Error], "%s %d", call, n)
			require.NotZero(t, s.report.Count()[report.Passed], "%s %d", call, n)
			require.NoError(t, drv.Balanced(), "%s %d", call, n)
		}
	}
}

// Copies that wait for the gate are not gated again, of whichever pair.
func TestP2PCopiesThatWaitForTheGate(t *testing.T) {
	drv := host.New(host.Config{Devices: 2, Memory: 1 << 30})
	a, b := openDriver(t, drv, 0), openDriver(t, drv, 1)
	t.Cleanup(func() { require.NoError(t, closeDevices([]device{a, b})) })
	pair := peerCopies(peerKind, peerFlows[toPeer], 4096, a, b, []device{a}, map[string]bool{})
	pair.group("pair", 1, 1)
	undo, err := pair.setup(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, undo()) })
	if !pair.gated {
		t.Skip("needs a device whose streams can wait for a value")
	}
	contender := func() *copier {
		c, err := pair.contender(t.Context(), legacyPeer, shape{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.close()) })
		return c.(*copier)
	}
	c := contender()
	require.Equal(t, a.settings.peerGateTimeout, c.timer.gate.timeout)
	_, err = c.measure(t.Context(), 1)
	require.NoError(t, err)
	require.Empty(t, pair.gateTimedOut)

	c.timer.gate.timeout = time.Millisecond
	c.copies = []copyFunc{pair.timing.raw.SyncStream}
	_, err = c.measure(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, map[string]bool{legacyPeer: true}, pair.gateTimedOut)
	require.Nil(t, contender().timer.gate)
}
