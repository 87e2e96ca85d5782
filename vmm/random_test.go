package vmm_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/randomops"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// failing are the calls that random programs may have refused: all that can fail without a
// mistake of the caller.
var failing = map[string]bool{
	"Create": true, "Map": true, "SetAccess": true, "Unmap": true, "Release": true, "Reserve": true, "Free": true,
	"SyncEvent": true, "Record": true, "NewEvent": true, "FreeEvent": true, "Done": true, "SyncIfActive": true, "RecordContext": true,
	"CopyIn": true, "CopyOut": true, "Copy": true, "Fill": true, "NewStream": true, "FreeStream": true,
	"Capturing": true, "AllocHost": true, "CanAccessPeer": true, "MemInfo": true,
}

// atRandom is how long a random program runs, and in a soak. VMM_RANDOM_SECONDS says otherwise.
func atRandom(soak time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv("VMM_RANDOM_SECONDS")); err == nil {
		return time.Duration(n) * time.Second
	}
	return testgate.Effort(100*time.Millisecond, 2*time.Second, soak)
}

// TestEverythingAtOnce: devices open and close while ranges of others are checked against
// what was written to them, and driver calls fail at random, in percent.
// VMM_RANDOM_SECONDS is how long each rate runs, VMM_RANDOM_SEED the first seed.
func TestEverythingAtOnce(t *testing.T) {
	seed := rand.Uint64()
	if n, err := strconv.ParseUint(os.Getenv("VMM_RANDOM_SEED"), 0, 64); err == nil {
		seed = n
	}
	for _, percent := range []int{0, 1, 10} {
		t.Run(fmt.Sprintf("failing=%d%%", percent), func(t *testing.T) {
			t.Logf("VMM_RANDOM_SEED=%d", seed)
			var drv driver.Driver = host.New(host.Config{Devices: 3, Memory: 4096 * page, Granularity: page})
			o := randomops.Options{Devices: []int{0, 1}, Guests: []int{2, 2}, Granule: page, Meddlers: 6, Seed: seed, For: atRandom(200 * time.Second)}
			slack := uint64(0)
			if onCUDA {
				drv = cudaDriver(t, 2)
				o.Devices, o.Guests, slack = []int{0}, []int{1, 1}, 64<<20
			}
			var on atomic.Bool
			injected := drivertest.Inject(drv, func(c drivertest.Call) error {
				if rand.IntN(4) == 0 { // so that other goroutines run between two calls
					runtime.Gosched()
				}
				if on.Load() && failing[c.Name] && rand.IntN(100) < percent {
					return errInjected
				}
				return nil
			})
			o.Driver = injected
			if percent > 0 {
				o.Fail = on.Store
				o.Injected = func(err error) bool { return errors.Is(err, errInjected) }
			}
			wrong, n := randomops.Run(t, o, slack)
			require.Empty(t, wrong)
			require.NoError(t, injected.Balanced())
			t.Logf("%d operations", n)
		})
	}
}
