package pool

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

var (
	// ErrDoubleFree is a block that was freed before.
	ErrDoubleFree = fmt.Errorf("%w: the block has been freed", vmm.ErrInvalid)
	// ErrForeignBlock is a block of another pool, or the zero Block.
	ErrForeignBlock = fmt.Errorf("%w: the block is not of this pool", vmm.ErrInvalid)
	// ErrNoRoom is a block that Resize cannot make longer where it lies.
	ErrNoRoom = errors.New("no free memory beside the block")
)
