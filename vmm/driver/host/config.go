package host

// Config describes the devices of a Driver. The zero value is one device as
// large as the machine's memory.
type Config struct {
	Devices         int      // how many devices; 0: one
	Memory          uint64   // bytes of each device; 0: the machine's memory, or the control group's limit if that is less
	PageGranularity bool     // sizes and addresses in pages instead of 2 MiB
	Mappings        int      // kernel mappings it may hold; 0: as many as the process, whose limit is vm.max_map_count less a margin
	NoPeer          [][2]int // pairs of devices that cannot reach each other's memory
}
