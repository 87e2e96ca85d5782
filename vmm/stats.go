package vmm

import "sync/atomic"

// gauge is a number of bytes now and the most it has been.
type gauge struct{ now, peak atomic.Uint64 }

func (g *gauge) add(n uint64) {
	v := g.now.Add(n)
	for p := g.peak.Load(); v > p && !g.peak.CompareAndSwap(p, v); p = g.peak.Load() {
	}
}

func (g *gauge) sub(n uint64) { g.now.Add(-n) }

// meter is the books behind Stats.
type meter struct {
	reserved, committed, used, pending, stuck gauge
	readopted                                 atomic.Uint64
}

// Stats is what a device has, in bytes. Each number is exact at the moment it
// is read; reading makes no driver call.
type Stats struct {
	Reserved  uint64 `json:"reserved"`  // addresses
	Committed uint64 `json:"committed"` // physical memory, created or imported
	Used      uint64 `json:"used"`      // below Len of a Range
	Pending   uint64 `json:"pending"`   // retiring: given up, its wait not over
	Stuck     uint64 `json:"stuck"`     // an undo failed here; Close tries again
	Readopted uint64 `json:"readopted"` // taken back while retiring, so far

	PeakReserved  uint64 `json:"peak_reserved"`
	PeakCommitted uint64 `json:"peak_committed"`
	PeakUsed      uint64 `json:"peak_used"`
	PeakPending   uint64 `json:"peak_pending"`

	AddressLimit uint64 `json:"address_limit"` // see SetAddressLimit
}

// Stats reads the device's books.
func (d *Device) Stats() Stats {
	if d == nil {
		return Stats{}
	}
	process.addresses.Lock()
	limit := process.limit
	process.addresses.Unlock()
	m := &d.meter
	return Stats{
		Reserved:      m.reserved.now.Load(),
		Committed:     m.committed.now.Load(),
		Used:          m.used.now.Load(),
		Pending:       m.pending.now.Load(),
		Stuck:         m.stuck.now.Load(),
		Readopted:     m.readopted.Load(),
		PeakReserved:  m.reserved.peak.Load(),
		PeakCommitted: m.committed.peak.Load(),
		PeakUsed:      m.used.peak.Load(),
		PeakPending:   m.pending.peak.Load(),
		AddressLimit:  limit,
	}
}

// RangeStats is what one Range has, in bytes.
type RangeStats struct {
	Reserved  uint64 `json:"reserved"`
	Committed uint64 `json:"committed"` // all that is mapped, retiring included
	Used      uint64 `json:"used"`      // Len
	Pending   uint64 `json:"pending"`
	Stuck     uint64 `json:"stuck"`
	Readopted uint64 `json:"readopted"`
	Chunks    int    `json:"chunks"`
}

// Report is a device's books with what is open in it.
type Report struct {
	Device string   `json:"device"`
	Stats  Stats    `json:"stats"`
	Open   []Opened `json:"open"`
}

// Opened is one thing that is open.
type Opened struct {
	Kind   string  `json:"kind"` // "range", "reservation", "chunk", "stream", "event", "grant"
	Made   string  `json:"made"` // file:line
	Addr   Ptr     `json:"addr,omitempty"`
	Size   uint64  `json:"size,omitempty"`
	Chunks []Piece `json:"chunks,omitempty"` // of a range or a reservation
}

// Piece is one chunk where it is mapped.
type Piece struct {
	Off   uint64 `json:"off"`
	Size  uint64 `json:"size"`
	State string `json:"state"` // "mapped", "accessible", "retiring"
	Stuck string `json:"stuck,omitempty"`
}
