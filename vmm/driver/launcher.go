package driver

// Launcher is a Device that runs kernels: functions that a program brings along, and
// which run on a stream as any queued work does.
type Launcher interface {
	// LoadModule loads code. The log is what the compiler says of PTX, also where it
	// fails; it is empty for code that needs none. Code for another architecture, or of
	// a newer PTX version than the driver knows, is ErrNotSupported; code that cannot be
	// parsed is ErrInvalid. On the host only Code.Host counts, and without it the error
	// is ErrNotSupported.
	LoadModule(Code) (m Module, log string, err error)
	// UnloadModule frees a module and its functions. None of them may be running.
	UnloadModule(Module) error
	// Function finds a kernel by its name in the code. If there is none, that is ErrInvalid.
	Function(m Module, name string) (Function, error)

	// Params lists a kernel's parameters in order. A driver that cannot know (CUDA before
	// 12.4) returns ErrNotSupported.
	Params(Function) ([]Param, error)
	// FunctionInfo describes a kernel as it was compiled.
	FunctionInfo(Function) (FunctionInfo, error)
	// SetMaxDynamicShared allows launches with up to n bytes of dynamic shared memory,
	// beyond the 48 KiB that any kernel may have.
	SetMaxDynamicShared(f Function, n uint32) error
	// Occupancy is how many blocks of that many threads run at once on one
	// multiprocessor, each with that much dynamic shared memory.
	Occupancy(f Function, threads, shared uint32) (blocks int, err error)
	// SuggestBlock is the number of threads in a block with which the kernel occupies a
	// device best, and the least grid that then fills it.
	SuggestBlock(f Function, shared uint32) (threads, blocks uint32, err error)

	// Launch queues a kernel on the stream. It returns once Args is copied. What is
	// beyond a limit of the device or of the kernel is ErrInvalid. A kernel that then
	// touches memory it may not costs the process all devices: CUDA checks no launch.
	// The host driver checks Launch.Memory as it checks a copy's.
	Launch(f Function, l *Launch, s Stream) error
}

// Module is code that is loaded on one device.
type Module uint64

// Function is a kernel of a Module.
type Function uint64

// Code is what LoadModule loads.
type Code struct {
	// Image is PTX text, a cubin or a fatbin. PTX need not end with a zero byte.
	Image []byte
	// MaxRegisters limits the registers of a thread when PTX is compiled. 0: no limit.
	MaxRegisters uint32
	// LineInfo adds line numbers to what is compiled from PTX, for profilers.
	LineInfo bool
	// Host stands in for the kernels of Image on host memory, by their names.
	Host map[string]HostKernel
}

// HostKernel is a kernel of the host driver.
type HostKernel struct {
	Params []Param
	// Run does the work of a whole grid. It runs on the stream, in a goroutine of the
	// driver, and must not keep l. A panic, an invalid memory access included, or an
	// error is a kernel that faulted: the device is lost.
	Run func(l *Launch) error
}

// Param is where a parameter lies in Launch.Args, in bytes.
type Param struct{ Offset, Size uint32 }

// FunctionInfo describes a kernel as it was compiled. On the host all is 0 but
// MaxThreads.
type FunctionInfo struct {
	MaxThreads       uint32 // in a block
	Registers        uint32 // of a thread
	StaticShared     uint32 // bytes of a block
	Local            uint32 // bytes of a thread
	Constant         uint32 // bytes
	MaxDynamicShared uint32 // bytes; see SetMaxDynamicShared
	PTXVersion       uint32 // 75 is 7.5
	BinaryVersion    uint32 // of the architecture: 90 is sm_90
}

// Dim is the extent of a grid, of a block or of a cluster. A zero counts as 1.
type Dim struct{ X, Y, Z uint32 }

// Size is the product of the extents.
func (d Dim) Size() uint64 {
	return uint64(max(d.X, 1)) * uint64(max(d.Y, 1)) * uint64(max(d.Z, 1))
}

// Launch says how a kernel runs and what it gets.
type Launch struct {
	Grid   Dim    // blocks in the grid
	Block  Dim    // threads in a block
	Shared uint32 // bytes of dynamic shared memory of a block

	// Launch attributes. A driver without cuLaunchKernelEx (before CUDA 11.8) returns
	// ErrNotSupported for any but zeros.
	Cluster     Dim   // blocks in a cluster; zero: no clusters
	Cooperative bool  // all blocks run at once, so that they can wait for each other
	Priority    int32 // of the kernel; lower is more urgent; 0: the stream's

	// Args is the parameters packed as C packs a struct of them.
	Args []byte
	// Memory is what the caller knows the kernel to use. CUDA does not look at it. A
	// Size of 0 stands for all memory that is mapped from there on without a hole.
	Memory []Span
}

// Span is memory that a call reads or writes.
type Span struct {
	Addr   Ptr
	Size   uint64 // bytes
	Access Access // what the call needs
}

// StreamPriorities is a Device whose streams can have priorities.
type StreamPriorities interface {
	// Priorities is the range of priorities. Lower is more urgent: greatest <= least.
	// Both are 0 where the device knows none.
	Priorities() (least, greatest int, err error)
	// NewStreamPriority is NewStream with a priority. One beyond the range is taken for
	// the nearest in it.
	NewStreamPriority(priority int) (Stream, error)
}
