package arena

import (
	"container/list"
	"math/bits"
)

// spans are the free addresses of an arena, in units from its beginning: those that were never
// taken, from fresh on, and those that were freed, by length.
type spans struct {
	fresh, end uint64
	begins     map[uint64]*list.Element // freed spans, by their begin, and by their end
	ends       map[uint64]*list.Element
	classes    [64]list.List // of *span with 2^i units or more, less than 2^(i+1), the oldest first
}

type span struct{ at, n uint64 }

func newSpans(n uint64) spans {
	return spans{end: n, begins: map[uint64]*list.Element{}, ends: map[uint64]*list.Element{}}
}

// looks is how many spans of a class are looked at that may be too short.
const looks = 32

// take takes n units: of those that were never taken, or, again, of those that were freed.
func (s *spans) take(n uint64, again bool) (at uint64, ok bool) {
	if !again {
		if s.end-s.fresh < n {
			return 0, false
		}
		s.fresh += n
		return s.fresh - n, true
	}
	e := s.find(n)
	if e == nil {
		return 0, false
	}
	x := s.remove(e)
	if x.n > n {
		s.add(span{x.at + n, x.n - n}, true)
	}
	return x.at, true
}

// find finds n freed units, those that were freed long ago before others.
func (s *spans) find(n uint64) *list.Element {
	class := bits.Len64(n) - 1
	looked := 0
	for e := s.classes[class].Front(); e != nil && looked < looks; e = e.Next() {
		if spanOf(e).n >= n {
			return e
		}
		looked++
	}
	for class++; class < len(s.classes); class++ {
		if e := s.classes[class].Front(); e != nil {
			return e
		}
	}
	return nil
}

// give frees n units, and joins them with the free spans on either side.
func (s *spans) give(at, n uint64) {
	x := span{at, n}
	if e := s.ends[x.at]; e != nil {
		before := s.remove(e)
		x.at, x.n = before.at, x.n+before.n
	}
	if e := s.begins[x.at+x.n]; e != nil {
		x.n += s.remove(e).n
	}
	s.add(x, false)
	if x.n == s.end { // all of it
		*s = newSpans(s.end)
	}
}

// add makes x free, as the oldest of its class or the youngest.
func (s *spans) add(x span, oldest bool) {
	l := &s.classes[bits.Len64(x.n)-1]
	var e *list.Element
	if oldest {
		e = l.PushFront(&x)
	} else {
		e = l.PushBack(&x)
	}
	s.begins[x.at], s.ends[x.at+x.n] = e, e
}

func (s *spans) remove(e *list.Element) span {
	x := spanOf(e)
	delete(s.begins, x.at)
	delete(s.ends, x.at+x.n)
	s.classes[bits.Len64(x.n)-1].Remove(e)
	return x
}

func spanOf(e *list.Element) span { return *e.Value.(*span) } //nolint:forcetypeassert // add has put it there
