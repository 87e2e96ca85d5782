package drivertest

import "github.com/cuvmm/cuvmm/vmm/driver"

func (v *device) DefaultPool() (p driver.Pool, err error) {
	err = ask(v, "DefaultPool", 0, func(i driver.Pooler) (err error) { p, err = i.DefaultPool(); return err })
	return p, err
}

func (v *device) CurrentPool() (p driver.Pool, err error) {
	err = ask(v, "CurrentPool", 0, func(i driver.Pooler) (err error) { p, err = i.CurrentPool(); return err })
	return p, err
}

func (v *device) SetCurrentPool(p driver.Pool) error {
	return ask(v, "SetCurrentPool", 0, func(i driver.Pooler) error { return i.SetCurrentPool(p) })
}

func (v *device) CreatePool(props driver.PoolProps) (p driver.Pool, err error) {
	err = ask(v, "CreatePool", props.Max, func(i driver.Pooler) (err error) { p, err = i.CreatePool(props); return err })
	return p, err
}

func (v *device) DestroyPool(p driver.Pool) error {
	return ask(v, "DestroyPool", 0, func(i driver.Pooler) error { return i.DestroyPool(p) })
}

func (v *device) AllocFromPool(from driver.Pool, n uint64, s driver.Stream) (p driver.Ptr, err error) {
	err = ask(v, "AllocFromPool", n, func(i driver.Pooler) (err error) { p, err = i.AllocFromPool(from, n, s); return err })
	return p, err
}

func (v *device) TrimPool(p driver.Pool, keep uint64) error {
	return ask(v, "TrimPool", keep, func(i driver.Pooler) error { return i.TrimPool(p, keep) })
}

func (v *device) PoolAttribute(p driver.Pool, a driver.PoolAttribute) (x uint64, err error) {
	err = ask(v, "PoolAttribute", 0, func(i driver.Pooler) (err error) { x, err = i.PoolAttribute(p, a); return err })
	return x, err
}

func (v *device) SetPoolAttribute(p driver.Pool, a driver.PoolAttribute, x uint64) error {
	return ask(v, "SetPoolAttribute", 0, func(i driver.Pooler) error { return i.SetPoolAttribute(p, a, x) })
}

func (v *device) SetPoolAccess(p driver.Pool, to []driver.Grant) error {
	return ask(v, "SetPoolAccess", 0, func(i driver.Pooler) error { return i.SetPoolAccess(p, to) })
}

func (v *device) PoolAccess(p driver.Pool, to driver.Location) (a driver.Access, err error) {
	err = ask(v, "PoolAccess", 0, func(i driver.Pooler) (err error) { a, err = i.PoolAccess(p, to); return err })
	return a, err
}

func (v *device) PoolOf(p driver.Ptr) (of driver.Pool, dev int, err error) {
	err = ask(v, "PoolOf", 0, func(i driver.Pooler) (err error) { of, dev, err = i.PoolOf(p); return err })
	return of, dev, err
}

func (v *device) PoolShares() (ways driver.Share, err error) {
	err = ask(v, "PoolShares", 0, func(i driver.Pooler) (err error) { ways, err = i.PoolShares(); return err })
	return ways, err
}

func (v *device) CopyPeer(dst driver.Ptr, to int, src driver.Ptr, from int, n uint64, s driver.Stream) error {
	return ask(v, "CopyPeer", n, func(i driver.PeerCopier) error { return i.CopyPeer(dst, to, src, from, n, s) })
}
