package vmm

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// legacyPairs is the pairs of a driver's devices that this process has enabled
// for plain memory.
type legacyPairs struct {
	mu    sync.Mutex // held across the driver's calls, so that they agree with the counts
	pairs map[[2]int]*legacyPair
}

// legacyPair is a pair that is enabled.
type legacyPair struct {
	users  int
	theirs bool // another library enabled it, and may count on it
}

// legacyKey lists a pair among what both its devices have open.
type legacyKey struct {
	l        *legacy
	from, to *Device
}

// legacy is the pairs of one EnableLegacyPeers.
type legacy struct {
	parent *driverState
	mu     sync.Mutex  // before legacyPairs.mu
	left   []legacyKey // still enabled
}

const enabling, disabling = "enable legacy peers", "disable legacy peers"

// EnableLegacyPeers lets every one of the devices reach plain memory of every
// other: what cuMemAlloc, cudaMalloc or another library's pool made. For what is
// mapped, ranges and reservations, it does nothing; see EnablePeers. All pairs
// are enabled or none. Pairs are counted for the whole process, and one that
// another library enabled before is used and never disabled here.
//
// disable waits for the work of the devices, as Unmap does, so it answers
// ErrCapturing during a capture, and disables what nobody else here uses. What
// fails stays enabled: call it again. Once done it does nothing. A library that
// relies on a pair enabled here, without enabling it itself, loses it then.
// Until then the devices answer ErrBusy to Close. A device without a path to
// another is ErrNotSupported, in a *PairError.
func EnableLegacyPeers(devs ...*Device) (disable func() error, err error) {
	var first *Device
	if len(devs) > 0 {
		first = devs[0]
	}
	l := &legacy{}
	if err := l.enable(devs); err != nil {
		return nil, first.fail(enabling, 0, 0, err)
	}
	return func() error { return first.fail(disabling, 0, 0, l.disable()) }, nil
}

func (l *legacy) enable(devs []*Device) error {
	if len(devs) == 0 {
		return fmt.Errorf("%w: no device", ErrInvalid)
	}
	for i, d := range devs {
		if d == nil {
			return d.live()
		}
		for _, e := range devs[:i] {
			if err := unlike(e, d); err != nil {
				return pairFail(d, e, err)
			}
		}
		if err := d.live(); err != nil {
			return pairFail(d, devs[(i+1)%len(devs)], err)
		}
	}
	l.parent = devs[0].state.parent
	var all []legacyKey
	for _, from := range devs {
		for _, to := range devs {
			if from == to {
				continue
			}
			if err := checkPath(from, to); err != nil {
				return pairFail(from, to, err)
			}
			all = append(all, legacyKey{l, from, to})
		}
	}
	for i, d := range devs { // both contexts of a pair have to be there
		if _, err := d.peer(); err != nil {
			return pairFail(d, devs[(i+1)%len(devs)], err)
		}
	}
	l.parent.legacy.mu.Lock()
	defer l.parent.legacy.mu.Unlock()
	for _, k := range all {
		err := k.open()
		if err == nil {
			l.left = append(l.left, k)
			continue
		}
		err = pairFail(k.from, k.to, err)
		for _, k := range slices.Backward(l.left) {
			err = also(err, "and disabling it again", k.shut(true))
		}
		return err
	}
	return nil
}

// unlike is nil if two devices are two, and of one driver.
func unlike(a, b *Device) error {
	switch {
	case a.state == b.state:
		return fmt.Errorf("%w: %v is named twice", ErrInvalid, b)
	case a.state.parent != b.state.parent:
		return fmt.Errorf("%w: %v is of another driver than %v", ErrInvalid, b, a)
	}
	return nil
}

// peer is the driver's device with what enables pairs.
func (d *Device) peer() (driver.LegacyPeers, error) {
	raw, err := d.state.ensureOpen()
	if err != nil {
		return nil, err
	}
	p, ok := raw.Device.(driver.LegacyPeers)
	if !ok {
		return nil, fmt.Errorf("%w: the driver has no peer access to plain memory", ErrNotSupported)
	}
	return p, nil
}

// open counts a user of the pair, the first of whom enables it. It needs
// legacyPairs.mu, and so do the following.
func (k legacyKey) open() error {
	at := [2]int{k.from.state.n, k.to.state.n}
	all := &k.l.parent.legacy
	if err := k.track(); err != nil {
		return err
	}
	if p := all.pairs[at]; p != nil {
		p.users++
		return nil
	}
	dev, err := k.from.peer()
	if err == nil {
		err = dev.EnablePeer(k.to.state.n)
	}
	theirs := errors.Is(err, driver.ErrPeerEnabled)
	if err != nil && !theirs {
		k.untrack()
		return err
	}
	if all.pairs == nil {
		all.pairs = map[[2]int]*legacyPair{}
	}
	all.pairs[at] = &legacyPair{users: 1, theirs: theirs}
	return nil
}

// shut undoes open; the last user disables the pair. A device that is lost has
// nothing left to disable. After an error the pair stays as it was, or, where
// nobody could be told of it, stays enabled without a user: the next one finds
// it, and the device tries again when it closes.
func (k legacyKey) shut(undo bool) error {
	at := [2]int{k.from.state.n, k.to.state.n}
	all := &k.l.parent.legacy
	p := all.pairs[at]
	var err error
	if p.users == 1 {
		err = p.disable(k, at)
		if err != nil && !lost(err) {
			if !undo {
				return pairFail(k.from, k.to, err)
			}
			p.users = 0
			k.from.deferRelease(func() error { return k.leftover(at, p) })
		} else {
			delete(all.pairs, at)
		}
	} else {
		p.users--
	}
	k.untrack()
	return pairFail(k.from, k.to, err)
}

// disable takes away what was enabled here, unless another library has done so
// by now, which the driver calls invalid.
func (p *legacyPair) disable(k legacyKey, at [2]int) error {
	if p.theirs {
		return nil
	}
	dev, err := k.from.peer()
	if err != nil {
		return err
	}
	if err = dev.DisablePeer(at[1]); errors.Is(err, ErrInvalid) {
		return nil
	}
	return err
}

// leftover disables a pair that an undo left enabled, unless it is used by now.
func (k legacyKey) leftover(at [2]int, p *legacyPair) error {
	all := &k.l.parent.legacy
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.pairs[at] != p || p.users > 0 {
		return nil
	}
	if err := p.disable(k, at); err != nil && !lost(err) {
		return pairFail(k.from, k.to, err)
	}
	delete(all.pairs, at)
	return nil
}

// disable waits, then gives up all pairs that are left.
func (l *legacy) disable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.left) == 0 {
		return nil
	}
	if err := l.fence(); err != nil {
		return err
	}
	l.parent.legacy.mu.Lock()
	defer l.parent.legacy.mu.Unlock()
	var failed error
	l.left = slices.DeleteFunc(l.left, func(k legacyKey) bool {
		err := k.shut(false)
		failed = also(failed, "and", err)
		return err == nil || lost(err)
	})
	return failed
}

// fence waits for the work of all devices that may use a peer's memory.
func (l *legacy) fence() error {
	if l.parent.noFence {
		return nil
	}
	var ports []*deviceState
	for _, k := range l.left {
		if !slices.Contains(ports, k.from.state) {
			ports = append(ports, k.from.state)
		}
	}
	return waitDevices(nil, ports)
}

// track keeps both devices open as long as the pair is used.
func (k legacyKey) track() error {
	if err := k.from.track(k, "legacy peer access"); err != nil {
		return err
	}
	err := k.to.track(k, "legacy peer access")
	if err != nil {
		k.from.untrack(k)
	}
	return err
}

// untrack undoes track.
func (k legacyKey) untrack() {
	k.from.untrack(k)
	k.to.untrack(k)
}
