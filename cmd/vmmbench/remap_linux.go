package main

import "golang.org/x/sys/unix"

// remapped is anonymous memory of the host that grows by mremap. Its pages move to other
// addresses unless those behind it are free.
type remapped struct {
	b     []byte
	start *byte // of b; nil before the first append
}

func newRemapped() (grower, error) { return &remapped{}, nil }

func (g *remapped) append(p piece) error {
	have := len(g.b)
	var grown []byte
	var err error
	if have == 0 {
		grown, err = unix.Mmap(-1, 0, int(p.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	} else {
		grown, err = unix.Mremap(g.b, have+int(p.size), unix.MREMAP_MAYMOVE)
	}
	if err != nil {
		return err
	}
	g.b, g.start = grown, &grown[0]
	copy(g.b[have:], p.host)
	return nil
}

func (g *remapped) address() any                { return g.start }
func (g *remapped) cost() (copied, peak uint64) { return 0, uint64(len(g.b)) }
func (g *remapped) buffer() *buffer {
	return &buffer{host: g.b, size: uint64(len(g.b)), chunks: []uint64{0}}
}

func (g *remapped) close() error {
	if g.b == nil {
		return nil
	}
	return unix.Munmap(g.b)
}
