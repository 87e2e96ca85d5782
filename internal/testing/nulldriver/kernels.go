package nulldriver

import "github.com/cuvmm/cuvmm/vmm/driver"

var (
	_ driver.Launcher = (*Device)(nil)
	_ driver.Grapher  = (*Device)(nil)
)

// LoadModule returns a new number.
func (v *Device) LoadModule(driver.Code) (driver.Module, string, error) {
	return driver.Module(v.next()), "", nil
}

// UnloadModule does nothing.
func (v *Device) UnloadModule(driver.Module) error { return nil }

// Function returns a new number, whatever the name.
func (v *Device) Function(driver.Module, string) (driver.Function, error) {
	return driver.Function(v.next()), nil
}

// Params is not supported.
func (v *Device) Params(driver.Function) ([]driver.Param, error) {
	return nil, driver.ErrNotSupported
}

// FunctionInfo has the threads of a block only.
func (v *Device) FunctionInfo(driver.Function) (driver.FunctionInfo, error) {
	return driver.FunctionInfo{MaxThreads: 1024}, nil
}

// SetMaxDynamicShared does nothing.
func (v *Device) SetMaxDynamicShared(driver.Function, uint32) error { return nil }

// Occupancy is one block.
func (v *Device) Occupancy(driver.Function, uint32, uint32) (int, error) { return 1, nil }

// SuggestBlock is one block of 256 threads.
func (v *Device) SuggestBlock(driver.Function, uint32) (threads, blocks uint32, err error) {
	return 256, 1, nil
}

// Launch does nothing.
func (v *Device) Launch(driver.Function, *driver.Launch, driver.Stream) error { return nil }

// BeginCapture does nothing: Capturing stays false.
func (v *Device) BeginCapture(driver.Stream, driver.CaptureMode) error { return nil }

// EndCapture returns a new number.
func (v *Device) EndCapture(driver.Stream) (driver.Graph, error) { return driver.Graph(v.next()), nil }

// CaptureID is 0.
func (v *Device) CaptureID(driver.Stream) (uint64, error) { return 0, nil }

// FreeGraph does nothing.
func (v *Device) FreeGraph(driver.Graph) error { return nil }

// Instantiate returns a new number.
func (v *Device) Instantiate(driver.Graph) (driver.GraphExec, error) {
	return driver.GraphExec(v.next()), nil
}

// FreeGraphExec does nothing.
func (v *Device) FreeGraphExec(driver.GraphExec) error { return nil }

// UpdateGraphExec does nothing.
func (v *Device) UpdateGraphExec(driver.GraphExec, driver.Graph) error { return nil }

// LaunchGraph does nothing.
func (v *Device) LaunchGraph(driver.GraphExec, driver.Stream) error { return nil }
