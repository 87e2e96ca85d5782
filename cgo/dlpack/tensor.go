package dlpack

// DeviceType is where memory is, a DLDeviceType.
type DeviceType int32

// Device types, with DLPack's numbers.
const (
	CPU      DeviceType = 1
	CUDA     DeviceType = 2
	CUDAHost DeviceType = 3 // pinned memory of the host
)

// ReadOnly is a flag of the struct with a version.
const ReadOnly = 1 << 0

// Major and Minor are the version of the struct that is exported.
const (
	Major = 1
	Minor = 0
)

// MostDims is how many dimensions an exported tensor has at most; MostDimsIn, one that Read reads.
const (
	MostDims   = 8
	MostDimsIn = 64
)

// Tensor is what either struct says.
type Tensor struct {
	Major, Minor uint32 // 0: the struct without a version, which has no flags
	Flags        uint64
	Data         uint64
	ByteOffset   uint64 // 0 in exports
	Type         DeviceType
	ID           int32
	Code, Bits   uint8
	Lanes        uint16
	NDim         int     // of what Read has read; it may be anything
	Shape        []int64 // nil if it is not there, or has no or too many dimensions
	Strides      []int64 // in elements; nil likewise
}
