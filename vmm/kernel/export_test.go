package kernel

// PTXParams is ptxParams.
var PTXParams = ptxParams

// SetNoCapacityCheck turns off the check of memory for what Go functions append: the negative
// control of the test that it is needed.
func SetNoCapacityCheck(off bool) { noCapacityCheck = off }
