package vmm

import "errors"

// verdict is that the access of one device was set, and what undoes that.
type verdict struct {
	dev    *Device
	before Access
	last   *verdict // the device's one before, while this one may be undone
	mark   *leaver  // keeps copies of ours from what may be undone
}

// decide sets the access of devs, which are eligible, to a. What it answers
// goes to settle or to Range.undecide.
func (r *Reservation) decide(a Access, devs []*Device) (done []*verdict, err error) {
	marked := r.leave(a, devs)
	defer r.stay(marked)
	r.layout.Lock()
	defer r.layout.Unlock()
	for {
		if err := r.usable(); err != nil {
			return nil, err
		}
		if !r.narrows(a, devs) {
			break
		}
		// Work may be queued under a grant that comes while we wait.
		seen := r.widened
		r.layout.Unlock()
		err := r.fence()
		r.layout.Lock()
		if err != nil {
			return nil, err
		}
		if r.widened == seen && r.usable() == nil {
			break
		}
	}
	for _, d := range devs {
		before := r.granted(d)
		done = append(done, &verdict{d, before, r.told[d.port], &leaver{d.port, before}})
	}
	r.withhold(done)
	if err := r.regrant(a, devs); err != nil {
		r.admit(done...)
		return nil, err
	}
	if r.told == nil {
		r.told = map[*port]*verdict{}
	}
	for _, v := range done {
		r.told[v.dev.port] = v
	}
	return done, nil
}

// settle notes that verdicts stand: nobody undoes them any more.
func (r *Reservation) settle(done []*verdict) {
	r.layout.Lock()
	defer r.layout.Unlock()
	for _, v := range done {
		for e := v; e != nil; e = e.last {
			r.admit(e)
		}
		v.last = nil
	}
}

// withhold keeps copies of ours from access that may be undone without a wait.
func (r *Reservation) withhold(done []*verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range done {
		r.leaving = append(r.leaving, v.mark)
	}
}

// admit undoes withhold.
func (r *Reservation) admit(done ...*verdict) {
	var marks []*leaver
	for _, v := range done {
		marks = append(marks, v.mark)
	}
	r.stay(marks)
}

// undecide gives the devices back what they could do before, without waiting
// for their work: nobody has been told. A device about which somebody has been
// told something since keeps what it has now, and one that is closed by now has
// nothing.
func (g *Range) undecide(done []*verdict) (failed error) {
	r := g.r
	r.use.Lock() // a copy of ours may have found the grant
	r.layout.Lock()
	if r.usable() != nil {
		// A Close, Sleep or Wake that is under way has mapped what the books do
		// not show, or may yet fail. It comes to its end first.
		r.layout.Unlock()
		r.use.Unlock()
		r.closer.Lock()
		defer r.closer.Unlock()
		g.write.Lock()
		defer g.write.Unlock()
		r.use.Lock()
		r.layout.Lock()
	}
	defer r.use.Unlock()
	defer r.layout.Unlock()
	defer r.admit(done...)
	if errors.Is(r.usable(), ErrClosed) {
		return nil
	}
	var back [ReadWrite + 1][]*Device
	for _, v := range done {
		if r.recall(v) && (r.granted(v.dev) != None || v.dev.live() == nil) {
			back[v.before] = append(back[v.before], v.dev)
		}
	}
	for a, devs := range back {
		if len(devs) > 0 {
			failed = also(failed, "and", r.regrant(Access(a), devs))
		}
	}
	return failed
}

// recall takes a verdict back, false if the device has a later one: whoever
// undoes that goes back to before this one. It needs r.layout.
func (r *Reservation) recall(v *verdict) bool {
	p := v.dev.port
	if r.told[p] == v || p.sys.noTold {
		r.told[p] = v.last
		return true
	}
	for later := r.told[p]; later != nil; later = later.last {
		if later.last == v {
			later.before, later.last = v.before, v.last
		}
	}
	return false
}
