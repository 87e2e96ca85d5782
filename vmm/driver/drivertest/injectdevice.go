package drivertest

import (
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// device is a Device of an Injected driver.
type device struct {
	d     *Injected
	n     int
	inner driver.Device

	closing sync.Mutex
	closed  bool // a second Close is allowed, and must not count
}

var (
	_ driver.Device           = (*device)(nil)
	_ driver.Allocator        = (*device)(nil)
	_ driver.HostAllocator    = (*device)(nil)
	_ driver.ContextRecorder  = (*device)(nil)
	_ driver.Grapher          = (*device)(nil)
	_ driver.Launcher         = (*device)(nil)
	_ driver.StreamMemOps     = (*device)(nil)
	_ driver.LegacyPeers      = (*device)(nil)
	_ driver.Copier2D         = (*device)(nil)
	_ driver.StreamPriorities = (*device)(nil)
	_ driver.Pooler           = (*device)(nil)
	_ driver.PeerCopier       = (*device)(nil)
	_ driver.Wrapper          = (*device)(nil)
)

func (v *device) Wraps() driver.Identity { return driver.IdentityOf(v.inner) }

func (v *device) call(name string, size uint64, f func() error) error {
	return v.d.call(name, v.n, size, f)
}

// ask makes a call of the optional interface I.
func ask[I any](v *device, name string, size uint64, f func(I) error) error {
	return v.call(name, size, func() error {
		i, ok := v.inner.(I)
		if !ok {
			return absent(name)
		}
		return f(i)
	})
}

func (v *device) MemInfo() (free, total uint64, err error) {
	err = v.call("MemInfo", 0, func() (err error) { free, total, err = v.inner.MemInfo(); return err })
	return free, total, err
}

func (v *device) CopyIn(dst driver.Ptr, src []byte) error {
	return v.call("CopyIn", uint64(len(src)), func() error { return v.inner.CopyIn(dst, src) })
}

func (v *device) CopyOut(dst []byte, src driver.Ptr) error {
	return v.call("CopyOut", uint64(len(dst)), func() error { return v.inner.CopyOut(dst, src) })
}

func (v *device) Copy(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	return v.call("Copy", n, func() error { return v.inner.Copy(dst, src, n, s) })
}

func (v *device) Fill(dst driver.Ptr, pattern uint32, width int, n uint64, s driver.Stream) error {
	return v.call("Fill", uint64(width)*n, func() error { return v.inner.Fill(dst, pattern, width, n, s) })
}

func (v *device) NewStream() (s driver.Stream, err error) {
	err = v.call("NewStream", 0, func() (err error) { s, err = v.inner.NewStream(); return err })
	return s, err
}

func (v *device) FreeStream(s driver.Stream) error {
	return v.call("FreeStream", 0, func() error { return v.inner.FreeStream(s) })
}

func (v *device) SyncStream(s driver.Stream) error {
	return v.call("SyncStream", 0, func() error { return v.inner.SyncStream(s) })
}

func (v *device) StreamDone(s driver.Stream) (yes bool, err error) {
	err = v.call("StreamDone", 0, func() (err error) { yes, err = v.inner.StreamDone(s); return err })
	return yes, err
}

// CopyStream cannot fail, so the hook does not see it.
func (v *device) CopyStream() driver.Stream { return v.inner.CopyStream() }

func (v *device) Capturing(s driver.Stream) (yes bool, err error) {
	err = v.call("Capturing", 0, func() (err error) { yes, err = v.inner.Capturing(s); return err })
	return yes, err
}

func (v *device) NewEvent(f driver.EventFlags) (e driver.Event, err error) {
	err = v.call("NewEvent", 0, func() (err error) { e, err = v.inner.NewEvent(f); return err })
	return e, err
}

func (v *device) FreeEvent(e driver.Event) error {
	return v.call("FreeEvent", 0, func() error { return v.inner.FreeEvent(e) })
}

func (v *device) SyncEvent(e driver.Event) error {
	return v.call("SyncEvent", 0, func() error { return v.inner.SyncEvent(e) })
}

func (v *device) Record(e driver.Event, s driver.Stream) error {
	return v.call("Record", 0, func() error { return v.inner.Record(e, s) })
}

func (v *device) RecordContext(e driver.Event) error {
	return ask(v, "RecordContext", 0, func(r driver.ContextRecorder) error { return r.RecordContext(e) })
}

func (v *device) Wait(s driver.Stream, e driver.Event) error {
	return v.call("Wait", 0, func() error { return v.inner.Wait(s, e) })
}

func (v *device) Done(e driver.Event) (yes bool, err error) {
	err = v.call("Done", 0, func() (err error) { yes, err = v.inner.Done(e); return err })
	return yes, err
}

func (v *device) Elapsed(from, to driver.Event) (t time.Duration, err error) {
	err = v.call("Elapsed", 0, func() (err error) { t, err = v.inner.Elapsed(from, to); return err })
	return t, err
}

func (v *device) Sync() error {
	return v.call("Sync", 0, v.inner.Sync)
}

func (v *device) Do(f func() error) error {
	return v.call("Do", 0, func() error { return v.inner.Do(f) })
}

func (v *device) Close() error {
	v.closing.Lock()
	defer v.closing.Unlock()
	if v.closed {
		return v.inner.Close()
	}
	err := v.call("Close", 0, v.inner.Close)
	v.closed = err == nil
	return err
}

func (v *device) AllocPlain(n uint64) (p driver.Ptr, err error) {
	err = ask(v, "AllocPlain", n, func(i driver.Allocator) (err error) { p, err = i.AllocPlain(n); return err })
	return p, err
}

func (v *device) FreePlain(p driver.Ptr) error {
	return ask(v, "FreePlain", 0, func(i driver.Allocator) error { return i.FreePlain(p) })
}

func (v *device) AllocAsync(n uint64, s driver.Stream) (p driver.Ptr, err error) {
	err = ask(v, "AllocAsync", n, func(i driver.Allocator) (err error) { p, err = i.AllocAsync(n, s); return err })
	return p, err
}

func (v *device) FreeAsync(p driver.Ptr, s driver.Stream) error {
	return ask(v, "FreeAsync", 0, func(i driver.Allocator) error { return i.FreeAsync(p, s) })
}

func (v *device) AllocHost(n uint64) (p driver.Ptr, b []byte, err error) {
	err = ask(v, "AllocHost", n, func(i driver.HostAllocator) (err error) { p, b, err = i.AllocHost(n); return err })
	return p, b, err
}

func (v *device) FreeHost(p driver.Ptr) error {
	return ask(v, "FreeHost", 0, func(i driver.HostAllocator) error { return i.FreeHost(p) })
}

func (v *device) BeginCapture(s driver.Stream, m driver.CaptureMode) error {
	return ask(v, "BeginCapture", 0, func(i driver.Grapher) error { return i.BeginCapture(s, m) })
}

func (v *device) EndCapture(s driver.Stream) (g driver.Graph, err error) {
	err = ask(v, "EndCapture", 0, func(i driver.Grapher) (err error) { g, err = i.EndCapture(s); return err })
	return g, err
}

func (v *device) CaptureID(s driver.Stream) (id uint64, err error) {
	err = ask(v, "CaptureID", 0, func(i driver.Grapher) (err error) { id, err = i.CaptureID(s); return err })
	return id, err
}

func (v *device) FreeGraph(g driver.Graph) error {
	return ask(v, "FreeGraph", 0, func(i driver.Grapher) error { return i.FreeGraph(g) })
}

func (v *device) Instantiate(g driver.Graph) (x driver.GraphExec, err error) {
	err = ask(v, "Instantiate", 0, func(i driver.Grapher) (err error) { x, err = i.Instantiate(g); return err })
	return x, err
}

func (v *device) FreeGraphExec(x driver.GraphExec) error {
	return ask(v, "FreeGraphExec", 0, func(i driver.Grapher) error { return i.FreeGraphExec(x) })
}

func (v *device) UpdateGraphExec(x driver.GraphExec, g driver.Graph) error {
	return ask(v, "UpdateGraphExec", 0, func(i driver.Grapher) error { return i.UpdateGraphExec(x, g) })
}

func (v *device) LaunchGraph(x driver.GraphExec, s driver.Stream) error {
	return ask(v, "LaunchGraph", 0, func(i driver.Grapher) error { return i.LaunchGraph(x, s) })
}

func (v *device) LoadModule(code driver.Code) (m driver.Module, log string, err error) {
	err = ask(v, "LoadModule", uint64(len(code.Image)), func(i driver.Launcher) (err error) { m, log, err = i.LoadModule(code); return err })
	return m, log, err
}

func (v *device) UnloadModule(m driver.Module) error {
	return ask(v, "UnloadModule", 0, func(i driver.Launcher) error { return i.UnloadModule(m) })
}

func (v *device) Function(m driver.Module, name string) (f driver.Function, err error) {
	err = ask(v, "Function", 0, func(i driver.Launcher) (err error) { f, err = i.Function(m, name); return err })
	return f, err
}

func (v *device) Params(f driver.Function) (p []driver.Param, err error) {
	err = ask(v, "Params", 0, func(i driver.Launcher) (err error) { p, err = i.Params(f); return err })
	return p, err
}

func (v *device) FunctionInfo(f driver.Function) (info driver.FunctionInfo, err error) {
	err = ask(v, "FunctionInfo", 0, func(i driver.Launcher) (err error) { info, err = i.FunctionInfo(f); return err })
	return info, err
}

func (v *device) SetMaxDynamicShared(f driver.Function, n uint32) error {
	return ask(v, "SetMaxDynamicShared", uint64(n), func(i driver.Launcher) error { return i.SetMaxDynamicShared(f, n) })
}

func (v *device) Occupancy(f driver.Function, threads, shared uint32) (blocks int, err error) {
	err = ask(v, "Occupancy", 0, func(i driver.Launcher) (err error) { blocks, err = i.Occupancy(f, threads, shared); return err })
	return blocks, err
}

func (v *device) SuggestBlock(f driver.Function, shared uint32) (threads, blocks uint32, err error) {
	err = ask(v, "SuggestBlock", 0, func(i driver.Launcher) (err error) { threads, blocks, err = i.SuggestBlock(f, shared); return err })
	return threads, blocks, err
}

func (v *device) Launch(f driver.Function, l *driver.Launch, s driver.Stream) error {
	return ask(v, "Launch", uint64(len(l.Args)), func(i driver.Launcher) error { return i.Launch(f, l, s) })
}

func (v *device) Priorities() (least, greatest int, err error) {
	err = ask(v, "Priorities", 0, func(i driver.StreamPriorities) (err error) { least, greatest, err = i.Priorities(); return err })
	return least, greatest, err
}

func (v *device) NewStreamPriority(priority int) (s driver.Stream, err error) {
	err = ask(v, "NewStreamPriority", 0, func(i driver.StreamPriorities) (err error) { s, err = i.NewStreamPriority(priority); return err })
	return s, err
}

func (v *device) WriteValue(s driver.Stream, p driver.Ptr, x uint64, width int) error {
	return ask(v, "WriteValue", uint64(width), func(i driver.StreamMemOps) error { return i.WriteValue(s, p, x, width) })
}

func (v *device) WaitValue(s driver.Stream, p driver.Ptr, x uint64, width int) error {
	return ask(v, "WaitValue", uint64(width), func(i driver.StreamMemOps) error { return i.WaitValue(s, p, x, width) })
}

func (v *device) EnablePeer(to int) error {
	return ask(v, "EnablePeer", 0, func(i driver.LegacyPeers) error { return i.EnablePeer(to) })
}

func (v *device) DisablePeer(to int) error {
	return ask(v, "DisablePeer", 0, func(i driver.LegacyPeers) error { return i.DisablePeer(to) })
}

func (v *device) Pitch(rowBytes uint64) (n uint64, err error) {
	err = ask(v, "Pitch", 0, func(i driver.Copier2D) (err error) { n, err = i.Pitch(rowBytes); return err })
	return n, err
}

func (v *device) CopyIn2D(dst driver.PitchedPtr, src []byte, width uint64) error {
	return ask(v, "CopyIn2D", uint64(len(src)), func(i driver.Copier2D) error { return i.CopyIn2D(dst, src, width) })
}

func (v *device) CopyOut2D(dst []byte, src driver.PitchedPtr, width uint64) error {
	return ask(v, "CopyOut2D", uint64(len(dst)), func(i driver.Copier2D) error { return i.CopyOut2D(dst, src, width) })
}

func (v *device) Copy2D(dst, src driver.PitchedPtr, width, rows uint64, s driver.Stream) error {
	return ask(v, "Copy2D", width*rows, func(i driver.Copier2D) error { return i.Copy2D(dst, src, width, rows, s) })
}
