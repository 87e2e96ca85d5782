package vmm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/said"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Errors of the driver below.
var (
	ErrOutOfMemory  = driver.ErrOutOfMemory  // no more memory on the device or, for pinned memory and what Sleep keeps, of the host; or beyond Device.SetLimit
	ErrAddressSpace = driver.ErrAddressSpace // no more addresses, see SetAddressLimit
	ErrNotSupported = driver.ErrNotSupported // the device or the system cannot do this
	ErrInvalid      = driver.ErrInvalid      // a rule is broken, mostly by an argument; nothing has changed, unless the call says otherwise
	ErrPermission   = driver.ErrPermission   // the system refuses, or the device has less access to the memory
	ErrClosed       = driver.ErrClosed       // used after Close
	ErrNoDriver     = driver.ErrNoDriver     // not installed; the text says what was looked for
	ErrNoDevice     = driver.ErrNoDevice     // the driver is there, this device is not
	ErrDeviceLost   = driver.ErrDeviceLost   // all devices of the process, until it ends
	ErrCapturing    = driver.ErrCapturing    // a stream is being captured; the wait would destroy the capture
	ErrPeerEnabled  = driver.ErrPeerEnabled  // legacy peer access is enabled already, maybe by another library
	ErrLimit        = driver.ErrLimit        // of open files, mappings (vm.max_map_count), peers of a device, or MaxDtype
	ErrContextReset = driver.ErrContextReset // another library has reset the device's context; an ErrDeviceLost, too
	ErrUnavailable  = driver.ErrUnavailable  // the device is not ready, or in exclusive use: try later
)

// Errors that this package adds.
var (
	ErrFull   = errors.New("beyond the range's maximum")
	ErrBusy   = errors.New("in use")           // held, published, or another call is at it
	ErrBounds = errors.New("out of bounds")    // beyond Len, or Cap
	ErrAsleep = errors.New("asleep, see Wake") // has no memory until Wake
)

// lost reports whether the device is gone, and with it all its work.
func lost(err error) bool { return errors.Is(err, ErrDeviceLost) }

// OpError is a failed operation of this package, as net.OpError is one of package net. errors.Is and
// errors.As look into Err, where a failed driver call is a *driver.CallError.
type OpError struct {
	Op     string // "map", "grow", "append"
	Device string // "cuda:0"
	Name   string // RangeOptions.Name or pool.Options.Name; in the text it is quoted
	Addr   Ptr    // 0 where there is none
	Size   uint64 // bytes asked for; 0 where there is none
	Err    error
}

func (e *OpError) Error() string {
	text := e.Op
	if e.Size != 0 {
		text += " " + errtext.Size(e.Size)
	}
	if e.Addr != 0 {
		text += " at " + e.Addr.String()
	}
	if e.Name != "" {
		text = withName(text+" of", e.Name)
	}
	if e.Device != "" {
		text += " on " + said.Word(e.Device)
	}
	return fmt.Sprintf("%s: %v", text, e.Err)
}

// Unwrap returns Err.
func (e *OpError) Unwrap() error { return e.Err }

// PairError says what device From cannot do with memory of device To. An OpError wraps it.
type PairError struct {
	From, To string // "cuda:1", "cuda:0"
	Err      error
}

func (e *PairError) Error() string {
	return fmt.Sprintf("%s to memory of %s: %v", e.From, e.To, e.Err)
}

// Unwrap returns Err.
func (e *PairError) Unwrap() error { return e.Err }

// undoAll undoes what was done, the last first, after err. What cannot be undone joins
// err.
func undoAll[T any](err error, doing string, done []T, undo func(T) error) error {
	for _, d := range slices.Backward(done) {
		err = errtext.Join(err, doing, undo(d))
	}
	return err
}

// Package driver's plain types under this package's name, so that applications import
// vmm only. The comment on each lists its fields or constants, because go doc shows none
// of an alias; a test compares them with package driver's.

// Ptr is a device address. It is an integer, and prints in hexadecimal.
type Ptr = driver.Ptr

// LocationKind says what a Location is:
//
//	LocationOwner     the device that the call is made on
//	LocationDevice    ID is a device ordinal
//	LocationHostNUMA  ID is a NUMA node
type LocationKind = driver.LocationKind

// Location is where memory is, or what may have access to it. Its zero value is the
// device that the call is made on.
//
//	Kind LocationKind
//	ID   int
type Location = driver.Location

// Access is what a device may do with mapped memory, in rising order:
//
//	AccessNone
//	AccessRead
//	AccessReadWrite
type Access = driver.Access

// Share is a set of ways in which memory can leave the process. It is fixed when the
// memory is created. 0 is none.
//
//	ShareFD        a file descriptor
//	ShareFabric    a 64-byte fabric handle
//	ShareReadOnly  importers cannot write; ErrNotSupported where that cannot be enforced, as on CUDA
type Share = driver.Share

// Prop describes physical memory; see Device.Create. It is comparable.
//
//	Location Location // where the memory is
//	Share    Share    // 0: private to this process
//	RDMA     bool     // usable by GPUDirect RDMA
//	Compress bool     // generic compression
type Prop = driver.Prop

// Info describes a device; see Device.Info. Reading it needs no context.
//
//	Ordinal int
//	Open    string   // the name for vmm.Open, "cuda:0"
//	Name    string
//	Arch    string   // "sm_90"; empty where it has no meaning
//	PCI     string   // "0000:3b:00.0"; empty where it has no meaning
//	MIG     string   // the MIG instance's UUID; empty if it is none
//	Driver  string   // the driver's version
//	UUID    [16]byte
//	Memory  uint64   // bytes in all
//	Compute string   // compute mode; empty where it has no meaning
//	Cache   uint64   // bytes of its largest cache, a GPU's L2 or a processor's L3; 0: not known
//	Unified bool     // unified addressing: an address means the same to the host and to the device
type Info = driver.Info

// PitchedPtr is where rows are; see Stream.Copy2D.
//
//	Ptr   Ptr
//	Pitch uint64 // bytes from one row to the next
type PitchedPtr = driver.PitchedPtr

// Span is memory that a call reads or writes; see Stream.LockSpans and Launch.
//
//	Addr   Ptr
//	Size   uint64 // bytes
//	Access Access // what the call needs
type Span = driver.Span

// Code is what Device.LoadModule loads; see package kernel, which makes it of Go values.
//
//	Image        []byte                // PTX text, a cubin or a fatbin
//	MaxRegisters uint32                // of a thread, when PTX is compiled; 0: no limit
//	LineInfo     bool                  // line numbers, for profilers
//	Host         map[string]HostKernel // stand in for the kernels of Image on host memory
type Code = driver.Code

// HostKernel is a kernel of the host driver.
//
//	Params []Param
//	Run    func(l *Launch) error // does the work of a whole grid
type HostKernel = driver.HostKernel

// Param is where a parameter of a kernel lies in Launch.Args.
//
//	Offset uint32 // bytes
//	Size   uint32 // bytes
type Param = driver.Param

// FunctionInfo describes a kernel as it was compiled. On the host all is 0 but MaxThreads.
//
//	MaxThreads       uint32 // in a block
//	Registers        uint32 // of a thread
//	StaticShared     uint32 // bytes of a block
//	Local            uint32 // bytes of a thread
//	Constant         uint32 // bytes
//	MaxDynamicShared uint32 // bytes; see SetMaxDynamicShared
//	PTXVersion       uint32 // 75 is 7.5
//	BinaryVersion    uint32 // of the architecture: 90 is sm_90
type FunctionInfo = driver.FunctionInfo

// Dim is the extent of a grid, of a block or of a cluster. A zero counts as 1.
//
//	X uint32
//	Y uint32
//	Z uint32
type Dim = driver.Dim

// Launch says how a kernel runs and what it gets; see Function.Launch.
//
//	Grid        Dim    // blocks in the grid
//	Block       Dim    // threads in a block
//	Shared      uint32 // bytes of dynamic shared memory of a block
//	Cluster     Dim    // blocks in a cluster; zero: no clusters
//	Cooperative bool   // all blocks run at once, so that they can wait for each other
//	Priority    int32  // of the kernel; lower is more urgent; 0: the stream's
//	Args        []byte // the parameters, packed as C packs a struct of them
//	Memory      []Span // what the kernel uses; of 0 bytes: what is mapped from there on
type Launch = driver.Launch

// Feature is something a device may be able to do; see Device.Supports.
//
//	FeatureVMM              reserve, create, map, set access
//	FeatureShareFD          export and import as file descriptors
//	FeatureShareFabric      export and import as fabric handles
//	FeatureDMABuf           export of address spans as dma-buf
//	FeatureRDMA             Prop.RDMA
//	FeatureHostNUMA         Prop.Location on a host NUMA node
//	FeaturePools            stream-ordered pools
//	FeatureLegacyIPC        cuIpc handles of plain memory
//	FeatureStreamMemOps     StreamMemOps
//	FeatureKernels          load and launch
//	FeatureReadOnlyMap      AccessRead is enforced
//	FeatureShareReadOnly    ShareReadOnly: an importer cannot write, whatever it does
//	FeaturePageChunks       the granularity is a page of the host
//	FeatureHostView         HostViewer: the CPU addresses the memory directly
//	FeatureZeroFilled       memory of Create reads as zeros, by promise
//	FeatureCopy2D           Copier2D: copies of rows with padding between them
//	FeaturePoolShareFD      pools whose memory can be shared by file descriptors
//	FeaturePoolShareFabric  pools whose memory can be shared by fabric handles
type Feature = driver.Feature

// DMABufFlags say how a dma-buf is made; see Reservation.ExportDMABuf.
//
//	DMABufPCIe  other devices reach the memory over PCIe, also where they have a faster link
type DMABufFlags = driver.DMABufFlags

// EventFlags say what an event is for; see Device.NewEvent.
//
//	EventTiming        Elapsed works on it
//	EventBlocking      a wait for it sleeps instead of spinning
//	EventInterprocess  other processes may open it; excludes EventTiming
type EventFlags = driver.EventFlags

// IPCHandle names an event of one process in another; see Event.IPCHandle. It is 64 bytes of
// plain data.
type IPCHandle = driver.IPCHandle

// Kinds of location: the device that a call is made on, a device by its ordinal, a NUMA node of the host.
const (
	LocationOwner    = driver.LocationOwner
	LocationDevice   = driver.LocationDevice
	LocationHostNUMA = driver.LocationHostNUMA
)

// Access levels, in rising order: each allows what the ones before it allow.
const (
	AccessNone      = driver.AccessNone
	AccessRead      = driver.AccessRead
	AccessReadWrite = driver.AccessReadWrite
)

// Ways to share memory, to be combined with |. Share describes each.
const (
	ShareFD       = driver.ShareFD
	ShareFabric   = driver.ShareFabric
	ShareReadOnly = driver.ShareReadOnly
)

// Features that a device may have. Feature describes each.
const (
	FeatureVMM             = driver.FeatureVMM
	FeatureShareFD         = driver.FeatureShareFD
	FeatureShareFabric     = driver.FeatureShareFabric
	FeatureDMABuf          = driver.FeatureDMABuf
	FeatureRDMA            = driver.FeatureRDMA
	FeatureHostNUMA        = driver.FeatureHostNUMA
	FeaturePools           = driver.FeaturePools
	FeatureLegacyIPC       = driver.FeatureLegacyIPC
	FeatureStreamMemOps    = driver.FeatureStreamMemOps
	FeatureKernels         = driver.FeatureKernels
	FeatureReadOnlyMap     = driver.FeatureReadOnlyMap
	FeatureShareReadOnly   = driver.FeatureShareReadOnly
	FeaturePageChunks      = driver.FeaturePageChunks
	FeatureHostView        = driver.FeatureHostView
	FeatureZeroFilled      = driver.FeatureZeroFilled
	FeatureCopy2D          = driver.FeatureCopy2D
	FeaturePoolShareFD     = driver.FeaturePoolShareFD
	FeaturePoolShareFabric = driver.FeaturePoolShareFabric
)

// DMABufPCIe is a flag of ExportDMABuf: other devices reach the memory over PCIe, also where they have a faster link.
const DMABufPCIe = driver.DMABufPCIe

// Flags of an event, to be combined with |. EventFlags describes each.
const (
	EventTiming       = driver.EventTiming
	EventBlocking     = driver.EventBlocking
	EventInterprocess = driver.EventInterprocess
)
