package driver

import "fmt"

// Ptr is a device address. It is an integer so that neither the garbage
// collector nor checkptr ever takes it for a Go pointer.
type Ptr uint64

// String is the address in hexadecimal.
func (p Ptr) String() string { return fmt.Sprintf("%#x", uint64(p)) }

// Handle names one allocation of physical memory, which is mapped, unmapped and
// shared as a whole.
type Handle uint64

// Stream names a queue of work on one device. 0 and 1 are CUDA's legacy default
// stream. 2 is the default stream of the calling thread, so a caller that uses it
// must stay on one thread. Work of the legacy stream runs after the work that is
// queued on all threads' streams, and work queued on those later runs after it.
// Streams of NewStream take no part. While a thread's stream is captured, every use
// of the legacy stream but Capturing returns ErrCapturing and destroys the capture.
type Stream uint64

// Event names a point in a stream.
type Event uint64

// LocationKind says what a Location is.
type LocationKind uint8

// Kinds of location. LocationOwner stands for the device that a call of package vmm
// is made on. A Driver returns ErrInvalid for it.
const (
	LocationOwner    LocationKind = iota // the device that the call is made on
	LocationDevice                       // ID is a device ordinal
	LocationHostNUMA                     // ID is a NUMA node
)

// Location is where memory is, or what may have access to it.
type Location struct {
	Kind LocationKind
	ID   int
}

func (l Location) String() string {
	switch l.Kind {
	case LocationOwner:
		return "owner"
	case LocationDevice:
		return fmt.Sprintf("device %d", l.ID)
	case LocationHostNUMA:
		return fmt.Sprintf("host node %d", l.ID)
	}
	return fmt.Sprintf("location(%d,%d)", l.Kind, l.ID)
}

// Access is what a location may do with mapped memory.
type Access uint8

// Access levels, in rising order.
const (
	AccessNone Access = iota
	AccessRead
	AccessReadWrite
)

func (a Access) String() string {
	switch a {
	case AccessNone:
		return "none"
	case AccessRead:
		return "read"
	case AccessReadWrite:
		return "read-write"
	}
	return fmt.Sprintf("access(%d)", uint8(a))
}

// Grant gives a location access to mapped memory.
type Grant struct {
	To     Location
	Access Access
}

// Share is a set of ways in which a chunk can leave the process. It is fixed
// when the chunk is created and cannot be extended later.
type Share uint8

// Ways to share. ShareReadOnly only narrows ShareFD.
const (
	ShareFD       Share = 1 << iota // a file descriptor
	ShareFabric                     // a 64-byte fabric handle
	ShareReadOnly                   // importers cannot write; ErrNotSupported where that cannot be enforced, as on CUDA
)

// Prop describes physical memory. It is comparable.
type Prop struct {
	Location Location // where the memory is
	Share    Share    // 0: private to this process
	RDMA     bool     // usable by GPUDirect RDMA
	Compress bool     // generic compression
}

// Info describes a device. Reading it needs no context.
type Info struct {
	Ordinal int
	Open    string // the name for vmm.Open, "cuda:0"
	Name    string
	Arch    string // "sm_90"; empty where it has no meaning
	PCI     string // "0000:3b:00.0"; empty where it has no meaning
	MIG     string // the MIG instance's UUID; empty if it is none
	Driver  string // the driver's version
	UUID    [16]byte
	Memory  uint64 // bytes in all
	Compute string // compute mode; empty where it has no meaning
	Cache   uint64 // bytes of its largest cache, a GPU's L2 or a processor's L3; 0: not known
	Unified bool   // unified addressing: an address means the same to the host and to the device
}

// Feature is something a device may be able to do; see Driver.Supports.
type Feature uint8

// Features.
const (
	FeatureVMM             Feature = iota // reserve, create, map, set access
	FeatureShareFD                        // export and import as file descriptors
	FeatureShareFabric                    // export and import as fabric handles
	FeatureDMABuf                         // export of address spans as dma-buf
	FeatureRDMA                           // Prop.RDMA
	FeatureHostNUMA                       // Prop.Location on a host NUMA node
	FeaturePools                          // stream-ordered pools
	FeatureLegacyIPC                      // cuIpc handles of plain memory
	FeatureStreamMemOps                   // StreamMemOps
	FeatureKernels                        // load and launch
	FeatureReadOnlyMap                    // AccessRead is enforced
	FeatureShareReadOnly                  // ShareReadOnly: an importer cannot write, whatever it does
	FeaturePageChunks                     // the granularity is a page of the host
	FeatureHostView                       // HostViewer: the CPU addresses the memory directly
	FeatureZeroFilled                     // memory of Create reads as zeros, by promise
	FeatureCopy2D                         // Copier2D
	FeaturePoolShareFD                    // pools whose memory can be shared by file descriptors
	FeaturePoolShareFabric                // pools whose memory can be shared by fabric handles
	features
)

var featureNames = [features]string{
	"vmm", "share-fd", "share-fabric", "dma-buf", "rdma", "host-numa",
	"pools", "legacy-ipc", "stream-mem-ops", "kernels", "read-only-map",
	"share-read-only", "page-chunks", "host-view", "zero-filled",
	"copy-2d", "pool-share-fd", "pool-share-fabric",
}

func (f Feature) String() string {
	if f < features {
		return featureNames[f]
	}
	return fmt.Sprintf("feature(%d)", uint8(f))
}

// Features lists every Feature there is.
func Features() []Feature {
	all := make([]Feature, features)
	for i := range all {
		all[i] = Feature(i)
	}
	return all
}

// DMABufFlags say how a dma-buf is made. A device's Driver may not know some of them.
type DMABufFlags uint8

// The flags of a dma-buf.
const (
	DMABufPCIe DMABufFlags = 1 << iota // other devices reach the memory over PCIe, also where they have a faster link
)

// EventFlags say what an event is for.
type EventFlags uint8

// Event flags.
const (
	EventTiming       EventFlags = 1 << iota // Elapsed works on it
	EventBlocking                            // a wait for it sleeps instead of spinning
	EventInterprocess                        // other processes may open it; excludes EventTiming
)
