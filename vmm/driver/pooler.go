package driver

// Pooler is a Device that has pools of its own: stream-ordered memory, as cuMemPoolCreate
// makes it. Memory of a pool is freed by Allocator.FreeAsync, in stream order, or by
// FreePlain, once all work that uses it has ended. Pools need CUDA 11.2, to share them 11.3,
// a maximum 12.2. What is no pool, or one that was destroyed, is ErrInvalid.
type Pooler interface {
	// DefaultPool is the device's own pool, which cannot be destroyed.
	DefaultPool() (Pool, error)
	// CurrentPool is the pool that AllocAsync takes from: the default one until SetCurrentPool.
	CurrentPool() (Pool, error)
	// SetCurrentPool makes a pool of this device the current one. A pool of another device
	// is ErrInvalid.
	SetCurrentPool(Pool) error
	// CreatePool makes a pool on this device. Close of the Device destroys it.
	CreatePool(PoolProps) (Pool, error)
	// DestroyPool gives a pool up. Memory that is allocated from it stays, and goes when it
	// is freed. If it was the current pool, the default one is current again. Of a pool that
	// was imported see PoolSharer.
	DestroyPool(Pool) error

	// AllocFromPool allocates n bytes in the order of a stream, which may be of another
	// device with access to the pool. 0 bytes are ErrInvalid.
	AllocFromPool(p Pool, n uint64, s Stream) (Ptr, error)
	// TrimPool releases memory that no one uses until at most keep bytes are reserved.
	TrimPool(p Pool, keep uint64) error
	// PoolAttribute reads an attribute.
	PoolAttribute(p Pool, a PoolAttribute) (uint64, error)
	// SetPoolAttribute sets one. PoolReservedPeak and PoolUsedPeak can only be set to 0,
	// which makes them the current value; PoolReserved and PoolUsed cannot be set.
	SetPoolAttribute(p Pool, a PoolAttribute, value uint64) error
	// SetPoolAccess sets which devices may use all memory of the pool, present and future.
	// AccessNone for the pool's own device is ErrInvalid.
	SetPoolAccess(p Pool, to []Grant) error
	// PoolAccess is what the device at a location may do with the pool's memory.
	PoolAccess(p Pool, to Location) (Access, error)
	// PoolOf is the pool that an address was allocated from, and the ordinal of the device
	// on which its memory lies. Pool is 0 for memory of no pool. An address that the driver
	// does not know is ErrInvalid.
	PoolOf(Ptr) (p Pool, device int, err error)
	// PoolShares is how memory of a pool can be shared, if it is created so.
	PoolShares() (Share, error)
}

// Pool is a driver's handle of a pool.
type Pool uint64

// PoolProps is what a pool is made with.
type PoolProps struct {
	Max   uint64 // bytes that it may reserve; 0: what the device has. CUDA's may reserve more
	Share Share  // how it can be exported; 0: not at all
}

// PoolAttribute is an attribute of a pool.
type PoolAttribute uint8

// The attributes, in CUDA's order.
const (
	PoolReuseFollowEvents PoolAttribute = iota + 1 // 0 or 1, as the next two
	PoolReuseOpportunistic
	PoolReuseInternalDependencies
	PoolReleaseThreshold // bytes
	PoolReserved         // bytes
	PoolReservedPeak     // bytes, the most since it was reset
	PoolUsed             // bytes
	PoolUsedPeak         // bytes
)

// PeerCopier is a Device that copies between two devices, neither of which needs access to
// the other's memory.
type PeerCopier interface {
	// CopyPeer queues a copy of n bytes from memory of device from to memory of device to.
	CopyPeer(dst Ptr, to int, src Ptr, from int, n uint64, s Stream) error
}
