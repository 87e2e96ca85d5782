package driver

// PoolToken names memory of a pool in a process that has imported the pool. It is plain
// data: any channel may carry it.
type PoolToken [64]byte

// PoolSharer is a Device whose pools other processes can import, as
// cuMemPoolExportToShareableHandle makes it: pools of CreatePool with ShareFD. The default
// pool and an imported one are ErrInvalid.
//
// An imported pool can be granted and, once all memory that was imported from it is freed,
// destroyed: before, DestroyPool is ErrInvalid and changes nothing. On a lost device it can be
// destroyed at any time. AllocFromPool of it and SetCurrentPool are ErrInvalid. TrimPool,
// PoolAttribute and SetPoolAttribute may be ErrInvalid, as they are on CUDA; where they work,
// the attributes count what was imported. At first only its own device has access; grants of
// the process that made it do not carry over.
type PoolSharer interface {
	// ExportPool returns a new, close-on-exec descriptor of the pool. The caller must close
	// it.
	ExportPool(Pool) (fd int, err error)
	// ImportPool makes a pool of a descriptor. The caller still owns fd, and destroys the
	// pool by DestroyPool. Close of the Device frees what is left of its memory, and destroys
	// it. A descriptor of something else is ErrInvalid.
	ImportPool(fd int) (Pool, error)
	// ExportPointer returns the token of an allocation of a pool that can be exported. p is
	// its first address.
	ExportPointer(p Ptr) (PoolToken, error)
	// ImportPointer maps the memory of a token. It must be freed, by FreeAsync or FreePlain,
	// before the process that allocated it frees it. Importing a token twice returns the
	// same address, and on CUDA the first free ends both. A token of another pool is
	// ErrInvalid, where the driver can tell.
	ImportPointer(Pool, PoolToken) (Ptr, error)
}
