package kernel

// PTXParams is ptxParams.
var PTXParams = ptxParams

// SetNoCapacityCheck turns off the check of memory for what Go functions append: the negative
// control of the test that it is needed.
func SetNoCapacityCheck(off bool) { noCapacityCheck = off }

// Lies are kernels that leave words in a cursor that cannot be.
var Lies = map[string]func(c *DeviceCursor){
	"wraps around": func(c *DeviceCursor) { c.capacity, c.reserved = 1<<63, 1<<61+20 },
	"more":         func(c *DeviceCursor) { c.capacity, c.reserved = 1<<40, 1<<30 },
	"needs all":    func(c *DeviceCursor) { c.reserved, c.written, c.unfinished = 1<<61+1, 1, 1 },
	"zeros":        func(c *DeviceCursor) { *c = DeviceCursor{} },
	"items":        func(c *DeviceCursor) { c.unfinished = 1 << 40 },
}

// UncheckedOffsets is where arguments lie if the kernel's parameters are not known, and how long
// all are.
func UncheckedOffsets(values ...any) (offs []uint32, size uint32, err error) {
	args := make([]arg, len(values))
	for i, v := range values {
		if args[i], err = newArg(v); err != nil {
			return nil, 0, err
		}
	}
	both, size, err := layOut(args, nil, nil)
	for _, off := range both {
		offs = append(offs, off[0])
	}
	return offs, size, err
}
