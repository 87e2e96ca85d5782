package drivertest_test

import (
	"errors"
	"math"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// poolMutants are the mutants for pools and for copies between devices.
func poolMutants(device func(rule string, wrap func(full) driver.Device) mutant, hangs func(rule, call string) mutant) map[string]mutant {
	return map[string]mutant{
		"pools are hidden":                       device("supports-what-works", func(f full) driver.Device { return &poolless{f} }),
		"the current pool is the default one":    device("pool-current", func(f full) driver.Device { return &alwaysDefault{f} }),
		"any device's pool is current":           device("pool-current-own", func(f full) driver.Device { return &anyCurrent{f} }),
		"blocks are cut short":                   device("pool-blocks", func(f full) driver.Device { return &shortBlocks{f} }),
		"no bytes are some":                      device("pool-sizes", func(f full) driver.Device { return &someBytes{f} }),
		"memory is freed twice":                  device("pool-free", func(f full) driver.Device { return &freesTwice{f} }),
		"a pool is never destroyed":              device("pool-destroy", func(f full) driver.Device { return &keepsPools{f} }),
		"no pool is trimmed":                     device("pool-unknown", func(f full) driver.Device { return &trimsAny{f} }),
		"policies are forgotten":                 device("pool-attributes", func(f full) driver.Device { return &forgetsAttributes{f} }),
		"any attribute can be set":               device("pool-attributes", func(f full) driver.Device { return &setsAny{f} }),
		"peaks cannot be reset":                  device("pool-counts", func(f full) driver.Device { return &forgetsAttributes{f} }),
		"a pool keeps all":                       device("pool-threshold", func(f full) driver.Device { return &keepsAll{f} }),
		"a pool keeps nothing":                   device("pool-threshold", func(f full) driver.Device { return &forgetsAttributes{f} }),
		"a trim does nothing":                    device("pool-trim", func(f full) driver.Device { return &trimsNothing{f} }),
		"a trim keeps nothing":                   device("pool-trim", func(f full) driver.Device { return &trimsAll{f} }),
		"the maximum is forgotten":               device("pool-max", func(f full) driver.Device { return &noMaximum{f} }),
		"no address is of a pool":                device("pool-of", func(f full) driver.Device { return &ofNone{f} }),
		"access to a pool is forgotten":          device("pool-access", func(f full) driver.Device { return &noPoolAccess{f} }),
		"the owner can be revoked":               device("pool-access", func(f full) driver.Device { return &revokesOwner{f} }),
		"a grant of a pool needs no path":        device("pool-no-path", func(f full) driver.Device { return &revokesOwner{f} }),
		"a pool is of its own streams":           device("pool-elsewhere", func(f full) driver.Device { return &ownStreams{f} }),
		"pools are shared in words":              device("pool-shares", func(f full) driver.Device { return &sharesInWords{f} }),
		"a closed device makes pools":            device("pool-close", func(f full) driver.Device { return &opensAgain{f} }),
		"a free waits":                           hangs("pool-order", "FreeAsync"),
		"freed memory is anyone's":               device("pool-apart", func(f full) driver.Device { return &reusesAtOnce{full: f} }),
		"memory is freed in no order":            device("pool-trim-late", func(f full) driver.Device { return &freesAtOnce{f} }),
		"plain memory is freed in no order":      device("pool-plain-late", func(f full) driver.Device { return &freesAtOnce{f} }),
		"destroying a pool waits":                hangs("pool-destroy-late", "DestroyPool"),
		"memory freed elsewhere is freed before": device("pool-free-elsewhere", func(f full) driver.Device { return &freesAtOnce{f} }),
		"a dependency is not waited for":         device("pool-follow", func(f full) driver.Device { return &noWait{f} }),
		"a copy between devices is none":         device("copy-peer", func(f full) driver.Device { return &copiesNoPeer{f} }),
		"a copy between pools is none":           device("copy-peer-pool", func(f full) driver.Device { return &copiesNoPeer{f} }),
		"a copy looks at no device":              device("copy-peer-refused", func(f full) driver.Device { return &anyPeer{f} }),
		"a copy between devices is not ordered":  device("copy-peer-order", func(f full) driver.Device { return &copiesAside{f} }),
	}
}

type poolless struct{ full }

func (d *poolless) DefaultPool() (driver.Pool, error) {
	return 0, &driver.CallError{Call: "DefaultPool", Kind: driver.ErrNotSupported}
}

type alwaysDefault struct{ full }

func (d *alwaysDefault) AllocAsync(n uint64, s driver.Stream) (driver.Ptr, error) {
	p, err := d.DefaultPool()
	if err != nil {
		return 0, err
	}
	return d.AllocFromPool(p, n, s)
}

type anyCurrent struct{ full }

func (d *anyCurrent) SetCurrentPool(p driver.Pool) error {
	return pass(d.full.SetCurrentPool(p), driver.ErrInvalid)
}

type shortBlocks struct{ full }

func (d *shortBlocks) AllocFromPool(p driver.Pool, n uint64, s driver.Stream) (driver.Ptr, error) {
	return d.full.AllocFromPool(p, max(n/2, 1), s)
}

type someBytes struct{ full }

func (d *someBytes) AllocFromPool(p driver.Pool, n uint64, s driver.Stream) (driver.Ptr, error) {
	return d.full.AllocFromPool(p, max(n, 1), s)
}

type freesTwice struct{ full }

func (d *freesTwice) FreeAsync(p driver.Ptr, s driver.Stream) error {
	return pass(d.full.FreeAsync(p, s), driver.ErrInvalid)
}

type keepsPools struct{ full }

func (d *keepsPools) DestroyPool(driver.Pool) error { return nil }

type trimsAny struct{ full }

func (d *trimsAny) TrimPool(p driver.Pool, keep uint64) error {
	return pass(d.full.TrimPool(p, keep), driver.ErrInvalid)
}

type forgetsAttributes struct{ full }

func (d *forgetsAttributes) SetPoolAttribute(p driver.Pool, a driver.PoolAttribute, _ uint64) error {
	_, err := d.PoolAttribute(p, a)
	return err
}

type setsAny struct{ full }

func (d *setsAny) SetPoolAttribute(p driver.Pool, a driver.PoolAttribute, n uint64) error {
	return pass(d.full.SetPoolAttribute(p, a, n), driver.ErrInvalid)
}

type keepsAll struct{ full }

func (d *keepsAll) SetPoolAttribute(p driver.Pool, a driver.PoolAttribute, n uint64) error {
	if a == driver.PoolReleaseThreshold {
		n = math.MaxUint64
	}
	return d.full.SetPoolAttribute(p, a, n)
}

type trimsNothing struct{ full }

func (d *trimsNothing) TrimPool(p driver.Pool, _ uint64) error {
	return d.full.TrimPool(p, math.MaxUint64)
}

type trimsAll struct{ full }

func (d *trimsAll) TrimPool(p driver.Pool, _ uint64) error { return d.full.TrimPool(p, 0) }

type noMaximum struct{ full }

func (d *noMaximum) CreatePool(p driver.PoolProps) (driver.Pool, error) {
	p.Max = 0
	return d.full.CreatePool(p)
}

type ofNone struct{ full }

func (d *ofNone) PoolOf(p driver.Ptr) (driver.Pool, int, error) {
	_, dev, err := d.full.PoolOf(p)
	return 0, dev, err
}

type noPoolAccess struct{ full }

func (d *noPoolAccess) SetPoolAccess(driver.Pool, []driver.Grant) error { return nil }

type revokesOwner struct{ full }

func (d *revokesOwner) SetPoolAccess(p driver.Pool, to []driver.Grant) error {
	return pass(d.full.SetPoolAccess(p, to), driver.ErrInvalid)
}

type ownStreams struct{ full }

func (d *ownStreams) AllocFromPool(p driver.Pool, n uint64, s driver.Stream) (driver.Ptr, error) {
	if _, err := d.StreamDone(s); err != nil && !errors.Is(err, driver.ErrCapturing) {
		return 0, err
	}
	return d.full.AllocFromPool(p, n, s)
}

type sharesInWords struct{ full }

func (d *sharesInWords) PoolShares() (driver.Share, error) { return driver.ShareFabric, nil }

type opensAgain struct{ full }

func (d *opensAgain) CreatePool(p driver.PoolProps) (driver.Pool, error) {
	h, err := d.full.CreatePool(p)
	return h, pass(err, driver.ErrClosed)
}

// reusesAtOnce has one block that was freed for whoever asks next.
type reusesAtOnce struct {
	full
	freed driver.Ptr
}

func (d *reusesAtOnce) FreeAsync(p driver.Ptr, _ driver.Stream) error {
	d.freed = p
	return nil
}

func (d *reusesAtOnce) AllocFromPool(p driver.Pool, n uint64, s driver.Stream) (driver.Ptr, error) {
	if d.freed != 0 {
		return d.freed, nil
	}
	return d.full.AllocFromPool(p, n, s)
}

// freesAtOnce frees without regard to what is queued.
type freesAtOnce struct{ full }

func (d *freesAtOnce) FreeAsync(p driver.Ptr, s driver.Stream) error {
	return d.full.FreeAsync(p, d.CopyStream())
}

type copiesNoPeer struct{ full }

func (d *copiesNoPeer) CopyPeer(driver.Ptr, int, driver.Ptr, int, uint64, driver.Stream) error {
	return nil
}

type anyPeer struct{ full }

func (d *anyPeer) CopyPeer(dst driver.Ptr, _ int, src driver.Ptr, _ int, n uint64, s driver.Stream) error {
	return d.Copy(dst, src, n, s)
}

type copiesAside struct{ full }

func (d *copiesAside) CopyPeer(dst driver.Ptr, to int, src driver.Ptr, from int, n uint64, _ driver.Stream) error {
	return errors.Join(d.full.CopyPeer(dst, to, src, from, n, d.CopyStream()), d.SyncStream(d.CopyStream()))
}
