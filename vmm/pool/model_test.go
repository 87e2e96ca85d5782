package pool_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// TestModel runs the machine by numbers of rapid, which makes failures short.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(t, rt, func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "pick") })
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			m.step()
		}
		m.end()
	})
}

// TestLongModel runs it by random numbers, for longer: for minutes in a soak.
func TestLongModel(t *testing.T) {
	seeds, steps := testgate.Effort(1, 6, 300), testgate.Effort(250, 400, 3000)
	first := rand.Uint64()
	for i := range seeds {
		seed := first + uint64(i)
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 0))
		m := newMachine(t, t, rnd.IntN)
		for range steps {
			m.step()
		}
		m.end()
	}
}

// TestRandomFaults: of the driver's calls some fail, and nothing is lost.
func TestRandomFaults(t *testing.T) {
	seeds, steps := testgate.Effort(2, 12, 1000), testgate.Effort(250, 250, 1000)
	first := rand.Uint64()
	for i := range seeds {
		seed := first + uint64(i)
		t.Logf("seed %d", seed)
		rnd, chance := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
		m := newMachine(t, t, rnd.IntN)
		m.injected = func() bool { return true }
		m.fault = func(c drivertest.Call) error {
			if mayFail[c.Name] && chance.IntN(12) == 0 {
				return errInjected
			}
			return nil
		}
		for range steps {
			m.step()
		}
		m.end()
	}
}

// mayFail are the driver's calls that can fail without a mistake of the caller.
var mayFail = map[string]bool{
	"Create": true, "Map": true, "SetAccess": true, "Unmap": true, "Record": true, "NewEvent": true,
	"Done": true, "StreamDone": true, "Wait": true, "Capturing": true, "MemInfo": true, "Release": true,
	"Reserve": true, "Free": true, "SyncEvent": true, "FreeEvent": true, "Fill": true, "Copy": true,
}

// TestNoMistake: the machine itself makes none: it reads what it has written.
func TestNoMistake(t *testing.T) {
	m := newMachine(t, t, newRand(1).IntN)
	for range 300 {
		m.step()
	}
	require.NotZero(t, m.stamp)
	m.end()
}
