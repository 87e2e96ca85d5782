package hostengine

import (
	"context"
	"crypto/rand"
	"sync"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/vmm"
)

// Worlds makes the engines of groups whose members are in this process: a World for each identity.
// Safe for concurrent use.
type Worlds struct {
	Options Options
	Wrap    func(rank int, m *Member) engine.Engine // what Join returns for a member; nil: the member

	mu      sync.Mutex
	worlds  map[nccl.ID]*World
	members []*Member
}

var _ engine.Maker = (*Worlds)(nil)

// NewID returns random bytes.
func (ws *Worlds) NewID() (id nccl.ID, err error) {
	_, err = rand.Read(id[:])
	return id, err
}

// Join does not wait for the other members. An engine waits for them.
func (ws *Worlds) Join(_ context.Context, dev *vmm.Device, id nccl.ID, rank, size int) (engine.Engine, error) {
	w, err := ws.world(id, size)
	if err != nil {
		return nil, err
	}
	m, err := w.Join(rank, dev)
	if err != nil {
		return nil, err
	}
	ws.mu.Lock()
	ws.members = append(ws.members, m)
	ws.mu.Unlock()
	if ws.Wrap != nil {
		return ws.Wrap(rank, m), nil
	}
	return m, nil
}

// world returns the identity's world, which it makes the first time.
func (ws *Worlds) world(id nccl.ID, size int) (w *World, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.worlds == nil {
		ws.worlds = map[nccl.ID]*World{}
	}
	if w = ws.worlds[id]; w == nil {
		if w, err = NewWorld(size, ws.Options); err == nil {
			ws.worlds[id] = w
		}
	}
	return w, err
}

// Members are those that have joined.
func (ws *Worlds) Members() []*Member {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return append([]*Member(nil), ws.members...)
}

// Rank is the member's number in its world.
func (m *Member) Rank() int { return m.rank }
