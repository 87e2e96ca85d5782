// Package spare keeps pieces of memory that nobody uses, found by kind and size
// and let go by age. It knows no lock and calls no driver.
package spare

import (
	"container/list"
	"slices"
)

// Piece is one kept piece of memory.
type Piece[K comparable, V any] struct {
	Kind  K
	Size  uint64
	Value V

	age, same *list.Element // where it is listed
}

// Pieces is what is kept. Every operation takes a time that does not grow with
// the number of pieces, but with that of different sizes. Its zero value is
// empty.
type Pieces[K comparable, V any] struct {
	bytes  uint64
	byAge  list.List // the oldest first
	byKind map[K]*sizes
}

// sizes is the pieces of one kind.
type sizes struct {
	sorted []uint64              // the sizes that there are
	pieces map[uint64]*list.List // of one size, the oldest first
}

// Bytes is how much is kept.
func (p *Pieces[K, V]) Bytes() uint64 { return p.bytes }

// Put keeps a piece.
func (p *Pieces[K, V]) Put(kind K, size uint64, value V) {
	if p.byKind == nil {
		p.byKind = map[K]*sizes{}
	}
	k := p.byKind[kind]
	if k == nil {
		k = &sizes{pieces: map[uint64]*list.List{}}
		p.byKind[kind] = k
	}
	same := k.pieces[size]
	if same == nil {
		same = list.New()
		k.pieces[size] = same
		i, _ := slices.BinarySearch(k.sorted, size)
		k.sorted = slices.Insert(k.sorted, i, size)
	}
	x := &Piece[K, V]{Kind: kind, Size: size, Value: value}
	x.age, x.same = p.byAge.PushBack(x), same.PushBack(x)
	p.bytes += size
}

// Take gives the largest piece of a kind from least to most bytes, of several
// the newest; nil if there is none.
func (p *Pieces[K, V]) Take(kind K, least, most uint64) *Piece[K, V] {
	k := p.byKind[kind]
	if k == nil {
		return nil
	}
	i, found := slices.BinarySearch(k.sorted, most)
	if !found {
		i--
	}
	if i < 0 || k.sorted[i] < least {
		return nil
	}
	return p.remove(k.pieces[k.sorted[i]].Back())
}

// Oldest gives the piece that came first; nil if there is none.
func (p *Pieces[K, V]) Oldest() *Piece[K, V] {
	if first := p.byAge.Front(); first != nil {
		return p.remove(first)
	}
	return nil
}

// remove takes out the piece that is listed there.
func (p *Pieces[K, V]) remove(e *list.Element) *Piece[K, V] {
	x := e.Value.(*Piece[K, V]) //nolint:forcetypeassert // nothing else is listed
	p.byAge.Remove(x.age)
	k := p.byKind[x.Kind]
	same := k.pieces[x.Size]
	same.Remove(x.same)
	if same.Len() == 0 {
		delete(k.pieces, x.Size)
		i, _ := slices.BinarySearch(k.sorted, x.Size)
		k.sorted = slices.Delete(k.sorted, i, i+1)
	}
	if len(k.sorted) == 0 {
		delete(p.byKind, x.Kind)
	}
	p.bytes -= x.Size
	return x
}
