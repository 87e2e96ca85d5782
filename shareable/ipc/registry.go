package ipc

import (
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// registry is what this process has exported, and what it has imported, by token. It serves
// two rules: a block that is imported is not freed by its owner, as far as that is this
// process; and no block is imported through two Pools, since on CUDA both get the same
// address, and the first free ends both.
type registry struct {
	mu       sync.Mutex
	own      map[tokenKey]ownBlock
	imported map[tokenKey]*Pool
	sweepAt  int // as many own blocks make addOwn look for those that are freed
}

// tokenKey is a token of one driver.
type tokenKey struct {
	of  driver.Identity
	raw driver.PoolToken
}

// ownBlock is a block that this process has exported.
type ownBlock struct {
	pool  *pool.DriverPool
	block pool.Block
}

// tokens is one for the process: so is what the driver maps.
var tokens registry

func keyOf(dev *vmm.Device, raw driver.PoolToken) tokenKey {
	return tokenKey{driver.IdentityOf(dev.Driver()), raw}
}

// addOwn notes a token of a block that this process owns. Those of blocks that have been
// freed are forgotten when there are twice as many as there were after the last time.
func (r *registry) addOwn(k tokenKey, b ownBlock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	const least = 64
	if r.own == nil {
		r.own, r.sweepAt = map[tokenKey]ownBlock{}, least
	}
	r.own[k] = b
	if len(r.own) < r.sweepAt {
		return
	}
	for k, b := range r.own {
		if release, err := b.pool.HoldBlock(b.block); err != nil {
			delete(r.own, k)
		} else {
			release()
		}
	}
	r.sweepAt = max(least, 2*len(r.own))
}

// addImport notes that a pool imports a token. If the block is this process's own, it is
// held until release.
func (r *registry) addImport(k tokenKey, by *Pool) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.imported[k] != nil {
		return nil, fmt.Errorf("%w: the block is imported through another Pool", vmm.ErrBusy)
	}
	release = func() {}
	if b, ours := r.own[k]; ours {
		if hold, err := b.pool.HoldBlock(b.block); err == nil {
			release = hold
		} // else it has been freed, and the token is the driver's to judge
	}
	if r.imported == nil {
		r.imported = map[tokenKey]*Pool{}
	}
	r.imported[k] = by
	return release, nil
}

// removeImport undoes addImport, but for release.
func (r *registry) removeImport(k tokenKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.imported, k)
}
