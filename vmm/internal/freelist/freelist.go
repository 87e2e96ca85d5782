// Package freelist lists pieces of memory that no one uses, found by kind and size
// and evicted, the oldest first. It knows no lock and calls no driver.
package freelist

import (
	"cmp"
	"container/list"
	"slices"
)

// Piece is one listed piece of memory.
type Piece[K comparable, V any] struct {
	Kind  K
	Size  uint64
	Value V

	inAge, inSize *list.Element // its places in List.byAge and in its ofSize
	of            *ofSize
}

// List is the pieces. Every operation takes a time that does not grow with
// the number of pieces, but with that of different sizes. Its zero value is
// empty.
type List[K comparable, V any] struct {
	Bytes  uint64          // of all pieces; only the methods change it
	byAge  list.List       // the oldest first
	byKind map[K][]*ofSize // the smallest size first
}

// ofSize is the pieces of one kind and size, the oldest first.
type ofSize struct {
	size   uint64
	pieces list.List
}

func (o *ofSize) bySize(size uint64) int { return cmp.Compare(o.size, size) }

// Put adds a piece.
func (p *List[K, V]) Put(kind K, size uint64, value V) {
	if p.byKind == nil {
		p.byKind = map[K][]*ofSize{}
	}
	all := p.byKind[kind]
	i, found := slices.BinarySearchFunc(all, size, (*ofSize).bySize)
	if !found {
		all = slices.Insert(all, i, &ofSize{size: size})
		p.byKind[kind] = all
	}
	x := &Piece[K, V]{Kind: kind, Size: size, Value: value, of: all[i]}
	x.inAge, x.inSize = p.byAge.PushBack(x), x.of.pieces.PushBack(x)
	p.Bytes += size
}

// Take returns the largest piece of a kind from least to most bytes, of several the
// oldest; nil if there is none. Memory that came back in the order of its addresses is
// taken in that order, and the system can join its mappings again.
func (p *List[K, V]) Take(kind K, least, most uint64) *Piece[K, V] {
	all := p.byKind[kind]
	i, found := slices.BinarySearchFunc(all, most, (*ofSize).bySize)
	if !found {
		i--
	}
	if i < 0 || all[i].size < least {
		return nil
	}
	return p.remove(all[i].pieces.Front())
}

// Oldest returns the piece that came first; nil if there is none.
func (p *List[K, V]) Oldest() *Piece[K, V] {
	if first := p.byAge.Front(); first != nil {
		return p.remove(first)
	}
	return nil
}

// remove takes out the piece that is listed there.
func (p *List[K, V]) remove(e *list.Element) *Piece[K, V] {
	x := e.Value.(*Piece[K, V]) //nolint:forcetypeassert // nothing else is listed
	p.byAge.Remove(x.inAge)
	x.of.pieces.Remove(x.inSize)
	if x.of.pieces.Len() == 0 {
		all := p.byKind[x.Kind]
		i := slices.Index(all, x.of)
		if all = slices.Delete(all, i, i+1); len(all) > 0 {
			p.byKind[x.Kind] = all
		} else {
			delete(p.byKind, x.Kind)
		}
	}
	p.Bytes -= x.Size
	return x
}
